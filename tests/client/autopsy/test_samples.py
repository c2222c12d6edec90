"""The search for the samples that suffice, and what rows of a tensor say of samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainvitals.autopsy.rows import Spoilt, bad_rows, likely_samples
from trainvitals.autopsy.samples import BUDGET_S, MAX_REPLAYS, Budget, bisect

Group = tuple[int, ...]


def unhurried(n_replays: int = 10_000) -> Budget:
    return Budget(lambda: 0.0, n_left=n_replays)


def failing_with(culprits: set[int], at_least: int = 1) -> Callable[[Group], bool]:
    return lambda group: len(culprits.intersection(group)) >= at_least


@given(st.integers(1, 70), st.data())
def test_all_samples_that_fail_alone_are_found(size: int, data: st.DataObject) -> None:
    culprits = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    found = bisect(size, failing_with(culprits), unhurried())
    assert found.samples == tuple(sorted(culprits))
    assert found.is_whole
    assert not found.is_group


@given(st.integers(2, 40), st.data())
def test_samples_that_only_fail_together_are_found_together(size: int, data: st.DataObject) -> None:
    together = data.draw(st.sets(st.integers(0, size - 1), min_size=2, max_size=4))
    found = bisect(size, failing_with(together, at_least=len(together)), unhurried())
    assert found.samples == tuple(sorted(together))
    assert found.is_group


@given(st.integers(1, 300), st.integers(0, MAX_REPLAYS), st.data())
def test_what_a_spent_budget_gives_still_suffices(size: int, n_replays: int, data: st.DataObject) -> None:
    culprits = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    tried: list[Group] = []

    def fails(group: Group) -> bool:
        tried.append(group)
        return bool(culprits.intersection(group))

    found = bisect(size, fails, unhurried(n_replays))
    assert culprits.intersection(found.samples)
    assert len(tried) <= n_replays


def test_one_culprit_among_a_thousand_takes_twenty_replays() -> None:
    budget = unhurried(MAX_REPLAYS)
    assert bisect(1000, failing_with({617}), budget).samples == (617,)
    assert MAX_REPLAYS - budget.n_left == 2 * 10


def test_the_search_ends_when_its_time_is_up() -> None:
    clock = itertools.count(0.0, BUDGET_S / 4).__next__
    found = bisect(1024, failing_with({5}), Budget(clock))
    assert not found.is_whole
    assert 5 in found.samples
    assert len(found.samples) > 1


@pytest.mark.parametrize(
    ("shape", "bad", "samples"),
    [
        ((6, 3), (2, 1), {2}),
        ((6,), (5,), {5}),
        ((24, 2), (9, 0), {2}),
        ((7, 3), (2, 1), set()),
        ((), (), set()),
    ],
)
def test_a_first_axis_of_whole_samples_tells_which(shape: Group, bad: Group, samples: set[int]) -> None:
    array = np.zeros(shape)
    array[bad] = np.nan
    rows = bad_rows(array)
    assert (rows.samples(6) if rows is not None else set()) == samples


def spoilt(number: int, bad: list[int] | None, *causes: int, length: int = 4) -> Spoilt:
    """Return an operation with bad rows, or with an output that has no rows."""
    array = np.zeros((length, 2) if bad is not None else ())
    array[bad if bad is not None else ()] = np.nan
    return Spoilt(number, causes, bad_rows(array))


def test_samples_that_stay_bad_on_the_way_are_tried_before_the_others() -> None:
    outcome = [spoilt(5, [0, 1, 3]), spoilt(8, [3], 5), spoilt(9, None, 8)]
    assert likely_samples(outcome, [9], 4) == [(3,), (0, 1, 3)]


def test_samples_that_come_by_different_ways_are_put_together() -> None:
    outcome = [spoilt(5, [0, 1, 3]), spoilt(6, [0], 5), spoilt(7, [3], 5), spoilt(8, [0, 3], 6, 7)]
    assert likely_samples(outcome, [8], 4) == [(0, 3), (0, 1, 3)]
    assert likely_samples(outcome, [6, 7], 4) == [(0, 3), (0, 1, 3)]
    assert likely_samples(outcome, [7], 4) == [(3,), (0, 1, 3)]


def test_rows_that_are_not_of_the_batch_change_nothing() -> None:
    outcome = [spoilt(5, [2]), spoilt(6, [0], 5), spoilt(7, [0, 1], 6, length=7), spoilt(8, None, 7)]
    assert likely_samples(outcome, [8], 4) == [(2,)]
    assert likely_samples([spoilt(5, None), spoilt(6, None, 5)], [6], 4) == []
