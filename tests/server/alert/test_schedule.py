"""When a message is tried again."""

from __future__ import annotations

import pytest

from trainvitals_server.alert.schedule import MAX_RETRY_AFTER_S, delay_after, parse_retry_after


def test_nine_tries_spread_over_a_day() -> None:
    delays = [delay_after(tries, 0.5, None) for tries in range(10)]
    assert delays == [0, 5, 30, 120, 600, 1800, 7200, 18000, 36000, None]


def test_jitter_is_a_fifth_either_way() -> None:
    assert delay_after(1, 0.0, None) == pytest.approx(4.0)
    assert delay_after(1, 1.0, None) == pytest.approx(6.0)


def test_retry_after_lengthens_a_delay_and_never_shortens_it() -> None:
    assert delay_after(1, 0.5, 90.0) == 90.0
    assert delay_after(5, 0.5, 1.0) == 1800.0
    assert delay_after(1, 0.5, 1e12) == MAX_RETRY_AFTER_S


def test_no_retry_after_revives_what_is_given_up() -> None:
    assert delay_after(9, 0.5, 10.0) is None


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),  # in the past
        ("-5", None),
        ("1e9", None),
        ("soon", None),
        ("٣", None),
        ("Thu, 99 Foo 1970", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, now=100.0) == seconds
