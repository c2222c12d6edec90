"""How often something may be measured, by a clock that the test moves."""

from __future__ import annotations

import pytest

from training import small_model
from trainvitals import HealthReporter
from trainvitals.budget import Budget, Overhead
from trainvitals.effort import Effort


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.tensorflow
def test_what_reading_takes_is_taken_off_what_is_measured_now_and_then() -> None:
    clock = Clock()
    effort, model = Effort(0.01, clock), small_model()
    effort.begin(model)
    effort.note(0.5)
    assert effort.weights.budget.share == 0.01  # too soon to tell
    effort.begin(model)
    clock.now = 2.0
    effort.note(0.006)
    assert effort.weights.budget.share == pytest.approx(0.007)
    effort.note(1.0)
    assert effort.weights.budget.share == pytest.approx(0.001)


@pytest.mark.parametrize("cost", [0.0005, 0.04, 2.0])
@pytest.mark.parametrize("share", [0.01, 0.2])
def test_what_is_measured_whenever_it_is_due_takes_the_share_and_no_more(cost: float, share: float) -> None:
    clock = Clock()
    budget = Budget(share, clock)
    while clock.now < 500 * cost / share:
        clock.now += 0.1 * cost  # a step of the training
        if budget.is_due:
            clock.now += cost
            budget.pay(cost)
    assert 0.75 * share * clock.now < budget.spent_s <= share * clock.now + 2 * cost


def test_the_second_time_comes_soon_for_the_first_has_loaded_things() -> None:
    clock = Clock()
    budget = Budget(0.01, clock)
    due = []
    while clock.now < 60:
        clock.now += 0.25
        if budget.is_due:
            due.append(clock.now)
            budget.pay(0.2)
    assert due == [0.25, 2.25, 22.25, 42.25]


def test_a_share_of_zero_is_never_due() -> None:
    assert not Budget(0.0, Clock()).is_due


def test_the_overhead_is_told_about_every_second() -> None:
    overhead = Overhead(10.0)
    overhead.note(0.25)
    assert overhead.share(10.5) is None
    overhead.note(0.25)
    assert overhead.share(12.0) == 0.25
    assert overhead.share(14.0) == 0.0


@pytest.mark.parametrize(
    ("given", "error"), [(1.0, ValueError), (-0.1, ValueError), (float("nan"), ValueError), ("1%", TypeError)]
)
def test_a_bad_budget_fails_where_it_is_written(given: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="overhead_budget"):
        HealthReporter(overhead_budget=given)  # type: ignore[arg-type]
