"""How often a costly pass may run within a share of the time."""

from __future__ import annotations

import pytest

from trainvitals.pace import LONGEST_INTERVAL, interval_for, rest_of, usual_step_s


@pytest.mark.parametrize("pass_s", [1e-6, 5e-5, 1e-3, 2.4e-3, 0.03, 0.5])
def test_the_pass_costs_no_more_than_its_part_of_the_budget_and_no_less_than_half(pass_s: float) -> None:
    share, step_s = 0.01, 0.1
    interval = interval_for(pass_s, step_s, share)
    cost = pass_s / (interval * step_s)
    if interval < LONGEST_INTERVAL:
        assert cost <= 0.9 * share
    if interval > 1:
        assert cost > 0.45 * share


def test_the_interval_ends_somewhere_also_without_a_budget() -> None:
    assert interval_for(1.0, 0.001, 0.01) == interval_for(1e-9, 1.0, 0.0) == LONGEST_INTERVAL
    assert interval_for(0.0, 0.1, 0.01) == interval_for(0.1, 0.0, 0.01) == 1


def test_the_rest_of_the_budget_is_what_reading_and_the_pass_leave_and_never_nothing() -> None:
    assert rest_of(0.01) == 0.01
    assert rest_of(0.01, 0.003, 0.004) == pytest.approx(0.003)
    assert rest_of(0.01, 0.007, 0.02) == pytest.approx(0.001)


def test_one_slow_execution_changes_nothing() -> None:
    assert usual_step_s([0.1, 0.1, 5.0], 2) == 0.05
    assert usual_step_s([], 1) == 0.0
