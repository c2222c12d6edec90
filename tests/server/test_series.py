"""The pyramid against a plain Python oracle: no spike and no non-finite value is lost at any zoom."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainvitals_server.series import (
    LEVEL_STEPS,
    NO_STEP,
    Buckets,
    Points,
    as_buckets,
    bucketize,
    coarsen,
    concat_buckets,
    concat_points,
    level_for,
    select,
)

Row = tuple[int, float | None]
CELLS = st.sampled_from([0.0, 1.0, -2.5, 1e300, -1e300, 5e-324, math.nan, math.inf, -math.inf, None])
ROWS = st.dictionaries(st.integers(0, 3000), CELLS, min_size=1, max_size=80).map(
    lambda rows: sorted(rows.items())
)


def points(rows: list[Row]) -> Points:
    return Points(
        np.array([step for step, _ in rows], dtype=np.int64),
        np.array([0.0 if value is None else value for _, value in rows], dtype=np.float64),
        np.array([value is not None for _, value in rows], dtype=bool),
    )


def oracle(rows: list[Row], width: int) -> list[dict[str, Any]]:
    """Return the buckets as a person would count them."""
    groups: dict[int, list[Row]] = defaultdict(list)
    for step, value in rows:
        groups[step // width].append((step, value))
    return [summary(group) for _, group in sorted(groups.items())]


def summary(group: list[Row]) -> dict[str, Any]:
    values = [value for _, value in group if value is not None]
    finite = [(value, step) for step, value in group if value is not None and math.isfinite(value)]
    low = min(finite, default=(None, NO_STEP))
    high = min(((-value, step) for value, step in finite), default=(None, NO_STEP))
    return {
        "step": group[0][0],
        "last_step": group[-1][0],
        "count": len(group),
        "first": repr(values[0]) if values else None,
        "last": repr(values[-1]) if values else None,
        "min": low[0],
        "argmin": low[1],
        "max": None if high[0] is None else -high[0],
        "argmax": high[1],
        "n_nan": sum(math.isnan(value) for value in values),
        "n_posinf": values.count(math.inf),
        "n_neginf": values.count(-math.inf),
        "n_missing": len(group) - len(values),
    }


def told(buckets: Buckets) -> list[dict[str, Any]]:
    """Return buckets in the form of the oracle."""
    found = []
    for row in range(len(buckets)):
        valued, finite = bool(buckets.has_value[row]), bool(buckets.has_finite[row])
        found.append(
            {
                "step": int(buckets.step[row]),
                "last_step": int(buckets.last_step[row]),
                "count": int(buckets.count[row]),
                "first": repr(float(buckets.first[row])) if valued else None,
                "last": repr(float(buckets.last[row])) if valued else None,
                "min": float(buckets.min[row]) if finite else None,
                "argmin": int(buckets.argmin[row]),
                "max": float(buckets.max[row]) if finite else None,
                "argmax": int(buckets.argmax[row]),
                "n_nan": int(buckets.n_nan[row]),
                "n_posinf": int(buckets.n_posinf[row]),
                "n_neginf": int(buckets.n_neginf[row]),
                "n_missing": int(buckets.n_missing[row]),
            }
        )
    return found


@given(ROWS, st.sampled_from([1, 2, 7, 64, 512, 4096]))
def test_buckets_say_what_counting_by_hand_says(rows: list[Row], width: int) -> None:
    assert told(bucketize(points(rows), width)) == oracle(rows, width)


@given(ROWS, st.sampled_from([(64, 512), (64, 4096), (512, 4096), (2, 6)]))
def test_buckets_of_buckets_equal_buckets_of_rows(rows: list[Row], widths: tuple[int, int]) -> None:
    fine, coarse = widths
    assert told(coarsen(bucketize(points(rows), fine), coarse)) == oracle(rows, coarse)


@given(ROWS, st.integers(2, 40), st.sampled_from([1, 64]))
def test_no_spike_and_no_non_finite_row_is_lost_at_any_zoom(rows: list[Row], pixels: int, size: int) -> None:
    shown = told(select(bucketize(points(rows), size), pixels, size))
    assert len(shown) <= pixels
    everything = summary(rows)
    assert sum(bucket["count"] for bucket in shown) == len(rows)
    for name in ("n_nan", "n_posinf", "n_neginf", "n_missing"):
        assert sum(bucket[name] for bucket in shown) == everything[name]
    lows = [(bucket["min"], bucket["argmin"]) for bucket in shown if bucket["min"] is not None]
    highs = [(-bucket["max"], bucket["argmax"]) for bucket in shown if bucket["max"] is not None]
    assert min(lows, default=(None, NO_STEP)) == (everything["min"], everything["argmin"])
    assert min(highs, default=(None, NO_STEP))[1] == everything["argmax"]


@given(ROWS, st.integers(2, 40))
def test_each_shown_bucket_is_the_truth_about_its_steps(rows: list[Row], pixels: int) -> None:
    for bucket in told(select(as_buckets(points(rows)), pixels, 1)):
        inside = [row for row in rows if bucket["step"] <= row[0] <= bucket["last_step"]]
        assert bucket == summary(inside)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_of_two_rows_of_one_step_the_later_wins(parts: list[list[Row]]) -> None:
    expected: dict[int, float | None] = {}
    for part in parts:
        expected.update(dict(part))
    merged = concat_points([points(part) for part in parts])
    assert told(as_buckets(merged)) == oracle(sorted(expected.items()), 1)


def test_buckets_of_several_levels_line_up_by_step() -> None:
    rows: list[Row] = [(step, float(step)) for step in range(700)]
    fine, coarse = bucketize(points(rows[:512]), 512), bucketize(points(rows[512:]), 64)
    assert told(coarsen(concat_buckets([coarse, fine]), 512)) == oracle(rows, 512)


@given(st.integers(1, 10**9), st.integers(1, 4000))
def test_a_level_is_never_coarser_than_a_pixel_nor_needlessly_fine(span: int, pixels: int) -> None:
    level = level_for(span, pixels)
    assert level == 0 or LEVEL_STEPS[level] * pixels <= span
    assert level == len(LEVEL_STEPS) - 1 or LEVEL_STEPS[level + 1] * pixels > span


@given(st.lists(st.tuples(*[CELLS] * 3), min_size=1, max_size=30), st.sampled_from([4, 8]))
def test_each_layer_of_a_layer_series_is_summarised_by_itself(
    rows: list[tuple[Any, ...]], width: int
) -> None:
    steps = np.arange(len(rows), dtype=np.int64)
    values = np.array([[cell or 0.0 for cell in row] for row in rows], dtype=np.float64)
    present = np.array([[cell is not None for cell in row] for row in rows])
    whole = coarsen(bucketize(Points(steps, values, present), 2), width)
    for layer in range(3):
        alone = bucketize(Points(steps, values[:, layer], present[:, layer]), width)
        assert np.array_equal(whole.n_missing[:, layer], alone.n_missing)
        assert np.array_equal(whole.argmin[:, layer], alone.argmin)
        assert np.array_equal(whole.argmax[:, layer], alone.argmax)
        assert np.array_equal(whole.has_value[:, layer], alone.has_value)
        for name in ("first", "last"):
            mine, other = getattr(whole, name)[:, layer], getattr(alone, name)
            assert np.array_equal(mine[alone.has_value], other[alone.has_value], equal_nan=True)


@given(st.lists(st.tuples(*[CELLS] * 2), min_size=1, max_size=30))
def test_layers_that_a_bucket_does_not_have_are_missing_in_it(rows: list[tuple[Any, ...]]) -> None:
    steps = np.arange(len(rows), dtype=np.int64)
    values = np.array([[cell or 0.0 for cell in row] for row in rows], dtype=np.float64)
    narrow = Points(steps, values, np.array([[cell is not None for cell in row] for row in rows]))
    before, after = bucketize(narrow, 4).widen([2, 0], 3), bucketize(narrow.widen([2, 0], 3), 4)
    for name in ("argmin", "argmax", "n_nan", "n_posinf", "n_neginf", "n_missing", "has_value", "has_finite"):
        assert np.array_equal(getattr(before, name), getattr(after, name)), name
    for name, holds in (
        ("first", "has_value"),
        ("last", "has_value"),
        ("min", "has_finite"),
        ("max", "has_finite"),
    ):
        where = getattr(after, holds)
        mine, other = getattr(before, name)[where], getattr(after, name)[where]
        assert np.array_equal(mine, other, equal_nan=True), name
    assert not after.has_value[:, 1].any()


def test_an_integer_series_is_bucketed_as_numbers() -> None:
    counts = Points(np.arange(4), np.array([3, 0, 7, 1], dtype=np.int64), np.ones(4, dtype=bool))
    (bucket,) = told(bucketize(counts, 64))
    assert (bucket["min"], bucket["argmin"], bucket["max"], bucket["argmax"]) == (0.0, 1, 7.0, 2)
