"""Which causes stand beside each other, and the test that tells two of them apart."""

from __future__ import annotations

import numpy as np
import pytest

from scaled import not_applied, unscaled_twice
from traces import batch_of, learning
from trainvitals.wire import Environment
from trainvitals_server.batch import Batch
from trainvitals_server.case import Guess
from trainvitals_server.choices import compatible, near_tie
from trainvitals_server.fold import scan
from trainvitals_server.incident import Incident


def guesses(**confidences: float) -> list[Guess]:
    return [Guess(cause, confidence) for cause, confidence in confidences.items()]


def jumping() -> Batch:
    """Leave the usual range a million times over in one step, and multiply from there on."""
    loss = learning(300)
    loss[250:] = 1e6 * 1e3 ** np.arange(50.0)
    return batch_of({"loss": loss, "learning_rate": np.full(300, 0.02)})


def the_loud(batch: Batch) -> Incident:
    env = Environment(optimizer="SGD")
    return next(item for item in scan([batch], environment=env) if item.severity != "info")


def test_what_is_proven_leaves_room_only_for_what_is_strong() -> None:
    told = compatible(guesses(bad_label=0.97, bad_input=0.95, learning_rate_too_high=0.6))
    assert [guess.cause for guess in told] == ["bad_label", "bad_input"]


def test_a_lower_rate_is_not_advised_beside_a_higher_one() -> None:
    told = compatible(guesses(learning_rate_too_low=0.7, constant_output=0.35, learning_rate_too_high=0.3))
    assert [guess.cause for guess in told] == ["learning_rate_too_low"]


@pytest.mark.parametrize(
    ("first", "second", "is_tie"), [(0.7, 0.65, True), (0.7, 0.5, False), (0.95, 0.9, False)]
)
def test_two_about_as_likely_are_a_tie_unless_one_is_proven(
    first: float, second: float, is_tie: bool
) -> None:
    told = guesses(learning_rate_too_high=first, data_outlier=second)
    assert (near_tie(told) is not None) is is_tie


def test_a_loss_that_jumps_at_once_has_two_candidates_and_a_test() -> None:
    incident = the_loud(jumping())
    assert incident.verdict.startswith("The loss jumped at step 250 and went on rising")
    assert any(line.startswith("Two candidates, about as likely: the learning rate") for line in incident.why)
    assert incident.next[0].startswith("How to tell: look at the batches of steps 249 and 250.")
    assert "a learning rate of 0.002 to 0.0067 (it was 0.02)" in incident.next[1]


@pytest.mark.parametrize("batch", [not_applied(), unscaled_twice()])
def test_two_ways_to_misuse_a_scale_are_told_apart_by_the_users_own_loop(batch: Batch) -> None:
    incident = the_loud(batch)
    assert incident.kind == "scaler_misuse"
    assert "does your loop call `optimizer.scale_loss(loss)`?" in incident.next[0]
    assert incident.causes[0].fix in incident.next[1]
