"""Verdicts: one plain sentence for each kind of incident, with its steps and numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

from trainvitals_server.case import Case
from trainvitals_server.layer_verdicts import LAYER_VERDICTS
from trainvitals_server.stuck_verdicts import STUCK_VERDICTS

FAR_AWAY_ROWS = 1e5  # a forecast beyond it says nothing


def verdict_of(case: Case) -> str:
    """Return the sentence that a user reads first."""
    template = VERDICTS.get(case.incident.kind)
    kind = case.incident.kind.replace("_", " ")
    text = template(case) if template else f"{kind.capitalize()} since step {case.incident.onset_step}."
    return text + _ending(case)


def _ending(case: Case) -> str:
    incident = case.incident
    if incident.state == "withdrawn":
        return " It came back by itself."
    if incident.state == "resolved" and incident.severity != "info":
        return " It is over."
    return ""


def _blowup(case: Case) -> str:
    incident, facts = case.incident, case.facts
    if case.is_growing:
        return f"The loss blew up right at the start: {_rise(case)}{_nonfinite(case)}."
    if facts.get("rows_before"):
        return (
            f"The loss is not finite at step {incident.onset_step}, after only "
            f"{facts['rows_before']:g} finite steps; the last was {_number(facts.get('previous_loss'))}."
        )
    return f"The loss is not finite from the very first step ({incident.onset_step})."


def _divergence(case: Case) -> str:
    speed = "quickly" if case.incident.kind == "fast_divergence" else "gradually"
    return (
        f"The loss diverges {speed} since step {case.incident.onset_step}: {_rise(case)}{_nonfinite(case)}."
    )


def _rise(case: Case) -> str:
    facts = case.facts
    if "loss" not in facts:
        return "it left its band and went on rising"
    return (
        f"from its best level {_number(facts.get('best'))} to {_number(facts.get('loss'))} "
        f"at step {case.incident.detected_step}"
    )


def _nonfinite(case: Case) -> str:
    incident = case.incident
    if incident.nonfinite_step is not None:
        lead = incident.lead_steps or 0
        return f", not finite at step {incident.nonfinite_step} ({lead} steps after this warning)"
    rows = case.facts.get("rows_to_limit")
    if isinstance(rows, float) and rows < FAR_AWAY_ROWS:
        return f", about {rows:.0f} rows from the end of float32 if it goes on like this"
    return ""


def _sudden(case: Case) -> str:
    incident, facts = case.incident, case.facts
    before = facts.get("previous_loss")
    text = f"The loss became non-finite out of the blue at step {incident.onset_step}"
    if isinstance(before, float) and math.isfinite(before):
        text += f"; the step before it was {_number(before)}, as usual"
    if facts.get("skipped"):
        text += "; the scaler skipped the update"
    return text + "."


def _gradient(case: Case) -> str:
    text = (
        f"The gradients became non-finite at step {case.incident.onset_step} while the loss was still finite"
    )
    later = [
        finding.detected_step for finding in case.incident.findings if finding.facts.get("loss_nonfinite")
    ]
    return text + (f"; the loss followed at step {later[0]}." if later else ".")


def _weight(case: Case) -> str:
    count = case.facts.get("weight_nonfinite")
    return f"{_number(count)} weights are not finite since step {case.incident.onset_step}."


def _collapse(case: Case) -> str:
    facts = case.facts
    scale = (
        f" and the scale fell to {facts['loss_scale']:g}"
        if isinstance(facts.get("loss_scale"), float)
        else ""
    )
    return (
        f"The loss scaler skipped {_number(facts.get('streak'))} updates in a row since step "
        f"{case.incident.onset_step}{scale}: the model is not being trained."
    )


def _spike(case: Case) -> str:
    facts = case.facts
    outcome = "came back" if facts.get("outcome") == "recovered" else "stayed high"
    return (
        f"The loss jumped from about {_number(facts.get('best'))} to {_number(facts.get('peak'))} at step "
        f"{_number(facts.get('peak_step'))} and {outcome}."
    )


def _epsilon(case: Case) -> str:
    facts = case.facts
    outcome = {
        "recovered": "; the loss jumped and came back",
        "persisted": "; the loss jumped and stayed high",
    }
    return (
        f"One optimizer step at {case.incident.onset_step} threw the model off: the gradient "
        f"norm had decayed to "
        f"{_number(facts.get('norm_before'))} and was {_number(facts.get('norm'))} right after"
        f"{outcome.get(str(facts.get('outcome')), '')}."
    )


def _exploding(case: Case) -> str:
    facts = case.facts
    of_layer = f" of layer {case.incident.layer}" if facts.get("one_layer") else ""
    return (
        f"The gradient norm{of_layer} explodes since step {case.incident.onset_step}: "
        f"{_number(facts.get('norm'))}, typically {_number(facts.get('typical_norm'))}{_nonfinite(case)}."
    )


def _transient(case: Case) -> str:
    if case.facts.get("norm_overflow"):
        return (
            f"The gradient norm overflowed in one row, at step {case.incident.onset_step}; training goes on."
        )
    skips = max(int(finding.facts.get("skips") or 1) for finding in case.incident.findings)
    updates = "1 update" if skips == 1 else f"{skips} updates"
    return f"The loss scaler skipped {updates} while it looked for its scale: normal."


def _validation(case: Case) -> str:
    metric = case.facts.get("metric", "a validation metric")
    return f"{metric} is not finite at step {case.incident.onset_step}, while training itself goes on."


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float | int) else "?"


VERDICTS: dict[str, Callable[[Case], str]] = {
    "immediate_blowup": _blowup,
    "gradual_divergence": _divergence,
    "fast_divergence": _divergence,
    "sudden_nan": _sudden,
    "nonfinite_gradient": _gradient,
    "nonfinite_weight": _weight,
    "loss_scale_collapse": _collapse,
    "loss_spike": _spike,
    "optimizer_epsilon": _epsilon,
    "exploding_gradient": _exploding,
    "transient_overflow": _transient,
    "validation_nonfinite": _validation,
    **LAYER_VERDICTS,
    **STUCK_VERDICTS,
}
