"""Charts of characters: what they show, and that they hide no spike and no NaN."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trainvitals_server.text_chart import BLOCKS, HEIGHT, LABEL_WIDTH, Curve, draw


def chart(values: npt.ArrayLike, width: int = 60, **options: bool) -> list[str]:
    cells = np.asarray(values, dtype=float)
    return draw(Curve("loss", np.arange(len(cells)), cells, np.ones(len(cells), bool)), width, **options)


def heights(lines: list[str]) -> list[int]:
    rows = [line[LABEL_WIDTH + 2 :] for line in lines[:HEIGHT]]
    width = max(map(len, rows))
    return [sum(BLOCKS.find(row.ljust(width)[column]) for row in rows) for column in range(width)]


def test_a_line_rises_from_the_lowest_block_to_the_top() -> None:
    found = heights(chart(np.arange(40.0)))
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, HEIGHT * 8)


def test_the_labels_are_the_largest_and_the_smallest_value() -> None:
    lines = chart([1.5, 3.25, 2.0])
    assert (lines[0].split()[0], lines[HEIGHT - 1].split()[0]) == ("3.25", "1.5")


@pytest.mark.parametrize("place", [0, 1, 777, 9999])
def test_one_spike_among_ten_thousand_rows_is_seen(place: int) -> None:
    values = np.ones(10_000)
    values[place] = 10
    assert max(heights(chart(values))) == HEIGHT * 8


def test_nan_and_infinity_have_marks_of_their_own() -> None:
    values = np.ones(1000)
    values[500], values[900] = np.nan, -np.inf
    top = chart(values)[0]
    assert (top.count("?"), top.count("!")) == (1, 1)


def test_what_spans_many_magnitudes_is_drawn_by_magnitude() -> None:
    lines = chart(10.0 ** np.arange(20))
    assert "log scale" in lines[-1]
    assert heights(lines)[10] == pytest.approx(HEIGHT * 4, abs=2)


def test_marks_stand_below_their_step() -> None:
    curve = Curve("loss", np.arange(11), np.arange(11.0), np.ones(11, bool), marks=(5, 99))
    foot = draw(curve, 60)[HEIGHT].split("\n")[0]
    assert foot == " " * (LABEL_WIDTH + 2 + 5) + "^"


def test_ascii_is_all_that_a_plain_chart_needs() -> None:
    assert "".join(chart(np.arange(50.0), is_plain=True)).isascii()


@pytest.mark.parametrize("values", [[], [1.0], [np.nan, np.nan]])
def test_where_there_is_no_curve_nothing_is_drawn(values: list[float]) -> None:
    assert chart(values) == []


@given(arrays(float, st.integers(0, 50)), st.integers(1, 90))
def test_any_floats_and_any_width_are_drawn(values: npt.NDArray[np.float64], width: int) -> None:
    assert all(len(line) < max(width, 20) + 80 for line in chart(values, width))
