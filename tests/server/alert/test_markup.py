"""Cutting text to a limit without leaving half of a character or of an escape."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainvitals_server.alert import markup


@given(st.text(max_size=60), st.integers(20, 50))
@pytest.mark.parametrize(
    "shape", [markup.clip, markup.slack, markup.slack_code, markup.discord, markup.discord_code]
)
def test_nothing_is_longer_than_its_limit(shape: Callable[[str, int], str], text: str, limit: int) -> None:
    assert markup.units(shape(text, limit)) <= limit


@given(st.text(max_size=30))
def test_what_fits_is_not_cut(text: str) -> None:
    assert markup.clip(text, markup.units(text)) == text


@pytest.mark.parametrize("limit", range(3, 12))
def test_a_cut_leaves_no_half_of_an_entity(limit: int) -> None:
    rest = markup.slack("<&>" * 9, limit).removesuffix("…")
    for entity in ("&lt;", "&amp;", "&gt;"):
        rest = rest.replace(entity, "")
    assert rest == ""


@pytest.mark.parametrize("limit", range(3, 12))
def test_a_cut_leaves_no_backslash_without_its_mark(limit: int) -> None:
    assert markup.discord("****" * 9, limit).removesuffix("…").replace("\\*", "") == ""


def test_a_cut_leaves_no_half_of_an_emoji() -> None:
    assert [markup.clip("🧨🧨🧨", limit) for limit in (6, 5, 4, 3)] == ["🧨🧨🧨", "🧨🧨…", "🧨…", "🧨…"]


def test_slack_marks_are_broken_but_names_can_be_copied() -> None:
    assert markup.slack("learning_rate", 50) == "learning_rate"
    assert markup.slack("_i_ a__b", 50) == "_\u200bi_\u200b a_\u200b_\u200bb"


def test_code_can_be_copied() -> None:
    code = "@tf.function\ndef f(x): return x * learning_rate"
    assert code in markup.slack_code(code, 500)
    assert code in markup.discord_code(code, 500)
