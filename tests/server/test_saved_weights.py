"""Which saved weights are good: a sentence with steps, and an incident that stays open while they are not."""

from __future__ import annotations

import numpy as np
import pytest

from layered import dead
from scaled import not_applied
from stuck import never_learning
from traces import NAN, batch_of, epsilon, gradual, learning, one_bad_batch, spike
from trainvitals.wire import Environment
from trainvitals_server.batch import Batch
from trainvitals_server.case import Context
from trainvitals_server.diagnose import tell
from trainvitals_server.fold import scan
from trainvitals_server.incident import Incident

BAD_STEP = 150


def the_loud(batch: Batch, environment: Environment | None = None) -> Incident:
    (incident,) = [
        item
        for item in scan([batch], environment=environment, layers=batch.layers)
        if item.severity != "info"
    ]
    return incident


def applied() -> Batch:
    """Return a run with one NaN that was written into the weights, and whose losses are finite afterwards."""
    bad = np.arange(400) == BAD_STEP
    loss = np.where(bad, NAN, learning(400))
    return batch_of({"loss": loss, "grad_norm": np.where(bad, NAN, 1.0), "grad_nonfinite": 4.0 * bad})


def test_finite_losses_do_not_end_what_has_nan_in_its_weights() -> None:
    incident = the_loud(applied(), Environment(loss="mse"))
    assert (incident.state, incident.weights.bad_since) == ("open", BAD_STEP)
    assert incident.verdict.endswith("Later losses are finite, but the weights are damaged: stop the run.")
    assert incident.why[-1] == (
        f"Weights saved from step {BAD_STEP} on are unusable; those saved before step {BAD_STEP} are good."
    )


def test_what_the_scaler_kept_out_has_passed_and_can_come_back() -> None:
    incident = the_loud(one_bad_batch(), Environment(loss="mse"))
    assert (incident.state, incident.weights.usable) == ("resolved", True)
    assert incident.verdict.endswith("It has passed; that the cause is gone, too, is not known.")
    assert incident.why[-1] == "The weights are good: the loss scaler kept what was not finite out of them."


def test_where_there_is_no_scaler_the_reporter_kept_it_out() -> None:
    incident = the_loud(one_bad_batch(), Environment(loss="mse", optimizer="Adam"))
    assert incident.weights.usable is True
    assert incident.why[-1] == "The weights are good: the reporter kept what was not finite out of them."


def test_a_divergence_may_have_begun_with_the_update_before_its_first_loss() -> None:
    incident = the_loud(gradual())
    assert incident.weights.bad_since == incident.onset_step - 1
    assert f"saved from step {incident.onset_step - 1} on come from the divergence" in incident.why[-1]


@pytest.mark.parametrize(("checkpoints", "last"), [((10, 200, 333), 200), ((333,), None), ((), None)])
def test_a_checkpoint_is_named_only_where_it_is_older(checkpoints: tuple[int, ...], last: int | None) -> None:
    incident = tell(the_loud(gradual()), Context(checkpoints=checkpoints))
    assert incident.weights.last_checkpoint_step == last
    line = (
        f"the checkpoint of step {last}"
        if last
        else f"No checkpoint from before step {incident.weights.bad_since}"
    )
    assert any(line in text for text in incident.next)


def test_weights_of_the_steps_of_a_jump_are_not_those_to_go_back_to() -> None:
    incident = the_loud(epsilon())
    assert "those saved from step 900 to " in incident.why[-1]
    assert "do not go back to them" in incident.why[-1]


def test_weights_that_hardly_moved_are_not_damaged() -> None:
    (misused,) = [item for item in scan([not_applied()]) if item.kind == "scaler_misuse"]
    (flat,) = [item for item in scan([never_learning()]) if item.kind == "plateau"]
    assert misused.why[-1] == "Nothing is damaged: the weights have hardly changed from the initial ones."
    assert flat.why[-1] == "Nothing is damaged: the weights are about the initial ones."


def test_a_dead_layer_is_dead_in_what_was_saved_since_the_update_before() -> None:
    batch = dead()
    (incident,) = [item for item in scan([batch], layers=batch.layers) if item.kind == "dead_units"]
    assert incident.why[-1].startswith(
        f"In weights saved from step {incident.onset_step - 1} on this layer is dead"
    )


def test_a_loss_that_has_just_come_back_is_not_yet_called_good_for_good() -> None:
    (incident,) = [item for item in scan([spike().slice(0, 206)]) if item.kind == "loss_spike"]
    back = incident.findings[-1].detected_step
    assert incident.why[-1].startswith(
        f"By step {back} the loss was back in its usual range; the weights are good if it stays there;"
    )
