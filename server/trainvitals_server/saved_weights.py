"""Saved weights: which of them can still be used, and the sentence that says so for every incident. Pure.

"Saved at step N" means after the update of step N. The loss of a step is taken before that update.
"""

from __future__ import annotations

import math

from trainvitals_server.case import SURE, Case, Guess
from trainvitals_server.finding import Finding
from trainvitals_server.incident import Weights

APPLYING = ("sudden_nan", "nonfinite_gradient", "immediate_blowup", "nonfinite_weight")
HARMLESS = ("validation_nonfinite", "metric_nonfinite", "transient_overflow", "slow_steps")
OF_THE_LOSS = frozenset({"loss_spike", "gradual_divergence", "fast_divergence"})
# What is true of the saved weights of an incident that leaves them finite; {onset} is its first step.
FINITE = {
    "scaler_misuse": "Nothing is damaged: the weights have hardly changed from the initial ones.",
    "plateau": "Nothing is damaged: the weights are about as good as those of step {onset}, and no better.",
    "runaway_negative_loss": "The weights are finite, but trained towards a wrong goal from the first step "
    "on: train again.",
    "vanishing_gradient": "The weights are finite, but since step {onset} the first layers hardly learn.",
    "saturation": "The weights are finite, but since step {onset} this layer hardly learns.",
    "activation_overflow": "Weights saved before step {onset} are good; in later ones what was learned "
    "fades.",
    "oscillation": "The weights are finite; which are best depends on the step in which they were saved.",
    "overfitting": "For new data the weights saved about step {onset} are the best; later ones are finite, "
    "but fit only the training data better.",
    "loss_scale_stuck_low": "The weights are finite: a skipped update does not touch them.",
    "loss_spike": "Weights saved before step {onset} are good; later ones have the higher loss.",
    "optimizer_epsilon": "Weights saved before step {onset} are good; later ones come from the jump.",
    "silent_constant": "Weights saved before step {onset} are good; later ones may be NaN: look at them with "
    "`np.isfinite` before you use them.",
    "loss_scale_collapse": "Weights saved before step {onset} are good; of later ones nothing is known.",
}
GOOD = {
    "validation_nonfinite": "The weights are as good as the training loss: only the validation is not "
    "finite.",
    "metric_nonfinite": "The weights are good: only the metric is not finite.",
    "transient_overflow": "The weights are good: a skipped update does not touch them.",
    "slow_steps": "The weights are good: slow steps do not change them.",
}


def weights_of(case: Case) -> Weights:
    """Return whether the weights are usable, since when not, and the last checkpoint from before it."""
    incident = case.incident
    usable, since = _usable(case)
    if usable is False and case.is_growing:
        # The loss that rose first was taken before that step's update: the one before may have done it.
        since = max(incident.onset_step - 1, 0)
    end = incident.onset_step if since is None else since
    before = [step for step in case.context.checkpoints if step < end]
    return Weights(usable=usable, bad_since=since, last_checkpoint_step=max(before, default=None))


def weights_line(case: Case, best: Guess | None, weights: Weights) -> str:
    """Return what the saved weights are good for, whatever happened."""
    incident = case.incident
    if weights.usable is False:
        return _lost(case, weights)
    if weights.usable:
        if case.scaler:
            return "The weights are still good, but only until the scale is 0: save them now."
        return GOOD.get(incident.kind) or _spared(case)
    if incident.kind == "plateau" and _is_too_low(best):
        return "Nothing is damaged: the weights are about the initial ones."
    if incident.kind == "dead_units":
        return _with_a_dead_layer(case)
    if incident.kind == "silent_constant" and case.facts.get("how") == "zero_gradient":
        return f"Nothing is damaged: the weights have not changed since step {incident.onset_step}."
    unknown = "Weights saved before step {onset} are good; whether later ones are finite is not known: look "
    text = FINITE.get(incident.kind, unknown + "at them with `np.isfinite` before you use them.")
    return text.format(onset=incident.onset_step)


def _is_too_low(best: Guess | None) -> bool:
    return best is not None and best.cause == "learning_rate_too_low" and best.confidence >= SURE


def restart_line(weights: Weights) -> str:
    """Return where to go on from, where the weights are lost."""
    if weights.last_checkpoint_step is not None:
        return (
            f"Restart from the checkpoint of step {weights.last_checkpoint_step}: it is older than the onset."
        )
    if not weights.bad_since:
        return "No checkpoint is known: start again."
    return f"No checkpoint from before step {weights.bad_since} is known: start again."


def _lost(case: Case, weights: Weights) -> str:
    since, previous = weights.bad_since or 0, case.facts.get("previous_step")
    what = "are unusable"
    if case.incident.kind == "exploding_gradient":
        what, rest = "come from exploding gradients", "; those from before are good"
    elif case.is_growing:
        what, rest = "come from the divergence", "; those from before the loss left its usual range are good"
    else:
        is_sparse = isinstance(previous, int | float) and previous < since - 1
        good = int(previous or 0) if is_sparse else since  # what lies between two rows is not known
        rest = f"; those saved before step {good} are good" if good else ""
    return f"Weights saved from step {since} on {what}{rest}."


def _has_scaler(case: Case) -> bool:
    environment = case.context.environment
    return environment.loss_scaling or not environment.optimizer  # a log that names none has a scaler


def _spared(case: Case) -> str:
    incident = case.incident
    if _was_skipped(case):
        who = "the loss scaler" if _has_scaler(case) else "the reporter"
        return f"The weights are good: {who} kept what was not finite out of them."
    end = next((item for item in reversed(incident.findings) if item.phase in ("resolve", "withdraw")), None)
    rows = case.facts.get("excursion_rows")
    if end is not None and incident.kind not in APPLYING and (rows is None or rows != 0):
        last = end.detected_step
        good = "The weights are good again"
        if incident.kind in OF_THE_LOSS:  # which is told as soon as it is back, and may leave again
            good = (
                f"By step {last} the loss was back in its usual range; the weights are good if it stays there"
            )
        return (
            f"{good}; those saved from step {incident.onset_step} to {last} may come "
            f"from the jump: do not go back to them."
        )
    return "The weights are good, as far as the finite losses since then can tell."


def _with_a_dead_layer(case: Case) -> str:
    if case.facts.get("from_the_start"):
        return "The weights are finite, but this layer has never learned in any of them."
    dead = max(case.incident.onset_step - 1, 0)
    earlier = "take earlier ones, from when it had a gradient"
    return f"In weights saved from step {dead} on this layer is dead; {earlier}."


def _usable(case: Case) -> tuple[bool | None, int | None]:
    """Return whether the weights are usable, None if these signals cannot tell, and since when not."""
    incident, facts = case.incident, case.facts
    counted = [item.detected_step - 1 for item in incident.findings if item.facts.get("weights_nonfinite")]
    written = [item.onset_step for item in incident.findings if _was_applied(item)]
    # The weights of a row are counted before its update. No guard of Keras keeps a bad gradient out.
    if case.first_bad is not None and case.first_bad.found == "weight":
        since = case.first_bad.weights_bad_since
        if since is not None and since < 0:  # they came so
            since = case.first_bad.step
        return False, max(case.first_bad.step - 1, 0) if since is None else since
    if counted or (written and case.context.environment.loss and not case.is_growing):
        return False, max(min(written + counted), 0)
    if case.scaler.get("loss_scale") == 0.0:
        return False, next(
            item.detected_step for item in incident.findings
            if item.kind == "loss_scale_collapse" and item.facts.get("loss_scale") == 0.0
        )  # fmt: skip
    survived = any(finding.facts.get("weights_survived") for finding in incident.findings)
    recovered = facts.get("outcome") == "recovered" or incident.state == "withdrawn"
    if survived or recovered or incident.kind in HARMLESS or _was_skipped(case):
        return True, None
    spoiled = case.is_nonfinite and (facts.get("grad_nonfinite") or facts.get("gradient_nonfinite"))
    if spoiled or case.is_growing:
        return False, incident.onset_step
    return None, None


def _was_applied(finding: Finding) -> bool:
    """Whether the optimizer applied a gradient that is not finite in the row of `finding`."""
    facts = finding.facts
    norm = facts.get("grad_norm")
    is_nan = isinstance(norm, float) and math.isnan(norm)
    is_bad = bool(facts.get("grad_nonfinite") or facts.get("gradient_nonfinite") or is_nan)
    return is_bad and not facts.get("skipped") and finding.kind in APPLYING


def _was_skipped(case: Case) -> bool:
    """Whether the scaler kept the bad gradient out of the weights."""
    facts = case.facts
    if case.incident.kind == "loss_scale_collapse":
        return facts.get("loss_scale") != 0.0
    return case.is_nonfinite and bool(facts.get("skipped"))
