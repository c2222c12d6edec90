"""Verdicts: one plain sentence for each kind of incident, with its steps and numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

from trainvitals_server.case import SURE, Case, Guess
from trainvitals_server.detect.recurrence import counted
from trainvitals_server.detect.rows import Flags
from trainvitals_server.finding import Finding
from trainvitals_server.kept_out_verdict import kept_out
from trainvitals_server.layer_verdicts import LAYER_VERDICTS
from trainvitals_server.remedies import title_of
from trainvitals_server.stuck_verdicts import STUCK_VERDICTS

WORTH_SAYING = 0.3  # a less likely cause does not belong into the first sentence


def verdict_of(case: Case, best: Guess | None = None, *, is_damaged: bool = False) -> str:
    """Return the sentence that a user reads first; `is_damaged` where the weights are unusable."""
    template = VERDICTS.get(case.incident.kind)
    kind = case.incident.kind.replace("_", " ")
    text = f"{kind.capitalize()} since step {case.incident.onset_step}."
    text = kept_out(case) or (template(case) if template else text)
    return text + _cause(case, best) + _sinking(case) + _ending(case, best, is_damaged=is_damaged)


def is_in_headline(case: Case, best: Guess) -> bool:
    """Whether the first sentence already says all that this cause is called."""
    return bool(_cause(case, best)) and (best.confidence >= SURE or ": " not in title_of(case, best))


def _cause(case: Case, best: Guess | None) -> str:
    if best is None or best.cause == "unknown" or best.confidence < WORTH_SAYING:
        return ""
    is_proven = case.first_bad is not None and best.confidence >= SURE and not case.is_growing
    if not (case.is_nonfinite or is_proven or (best.confidence >= SURE and not case.is_growing)):
        return ""
    title = title_of(case, best).partition(": ")[0]
    if best.confidence >= SURE and best.supports:
        title = best.supports[0]  # a count or the replay proves it
    word = "Cause" if best.confidence >= SURE else "Likely cause"
    return f" {word}: {title}."


def _sinking(case: Case) -> str:
    """Return what the scaler does meanwhile, where something else came first."""
    facts = case.scaler
    if not facts or case.incident.kind == "loss_scale_collapse":
        return ""
    return f" The loss scaler {_skips(facts)}; at 0 the next good step writes NaN into every weight."


def _skips(facts: Flags) -> str:
    scale = facts.get("loss_scale")
    if "sink_rows" in facts:
        return (
            f"has skipped {facts['skips']} of the last {facts['sink_rows']} updates and the scale fell from "
            f"{facts['scale_before']:g} to {scale:g}"
        )
    fell = f" and the scale fell to {scale:g}" if isinstance(scale, float) else ""
    return f"has skipped {_number(facts.get('streak'))} updates in a row{fell}"


def _ending(case: Case, best: Guess | None, *, is_damaged: bool) -> str:
    """Return how it stands: that the symptom is gone does not mean that its cause is."""
    incident = case.incident
    if incident.state == "withdrawn":
        return " It came back by itself."
    if is_damaged and any(item.facts.get("weights_survived") for item in incident.findings):
        return " Later losses are finite, but the weights are damaged: stop the run."
    if incident.state != "resolved" or incident.severity == "info":
        return ""
    if best is not None and best.confidence >= SURE:
        return " It has passed, but the cause is still there: it can come back."
    return " It has passed; that the cause is gone, too, is not known."


def _blowup(case: Case) -> str:
    incident, facts = case.incident, case.facts
    if case.is_growing:
        return f"The loss blew up right at the start: {_rise(case)}{_nonfinite(case)}."
    if facts.get("rows_before"):
        before = counted(int(float(facts["rows_before"] or 0)), "finite step")
        return (
            f"The loss is not finite at step {incident.onset_step}, after only {before}; the last was "
            f"{_number(facts.get('previous_loss'))}.{_earlier_update(case)}"
        )
    if facts.get("gradient_nonfinite") and facts.get("is_first_row"):
        text = f"The gradients are not finite from the first step on (step {incident.onset_step})"
        return f"{text}; the loss of that step still was{_followed(case)}."
    return f"The loss is not finite from the first step on (step {incident.onset_step})."


def _earlier_update(case: Case) -> str:
    report = case.first_bad
    if report is None or report.found != "weight":
        return ""
    since = report.step - 1 if report.weights_bad_since is None else report.weights_bad_since
    return f" The update of step {since} had ruined the weights." if since >= 0 else ""


def _divergence(case: Case) -> str:
    onset = case.incident.onset_step
    speed = "quickly" if case.incident.kind == "fast_divergence" else "gradually"
    how = (
        f"jumped at step {onset} and went on rising"
        if case.rose_at_once
        else f"diverges {speed} since step {onset}"
    )
    return f"The loss {how}: {_rise(case)}{_nonfinite(case)}."


def _rise(case: Case) -> str:
    """Return how far it had come when it was told, or has come while it goes on."""
    told = [finding for finding in case.incident.findings if "loss" in finding.facts]
    if not told or "loss" not in case.facts:
        return "it left its usual range and went on rising"
    latest = told[-1] if case.incident.nonfinite_step is None else told[0]
    return (
        f"from its best level {_number(case.facts.get('best'))} to {_number(latest.facts.get('loss'))} "
        f"at step {latest.detected_step}"
    )


def _nonfinite(case: Case) -> str:
    incident = case.incident
    if incident.nonfinite_step is not None:
        return f", not finite at step {incident.nonfinite_step}"
    latest = _newest(case, "steps_to_float32_end")
    if latest is None or incident.state != "open":
        return ""
    return f"; if it goes on like this, the loss overflows float32 {_range(latest)}"


def _newest(case: Case, fact: str) -> Finding | None:
    return next((item for item in reversed(case.incident.findings) if fact in item.facts), None)


def _range(forecast: Finding) -> str:
    """Return where the forecast puts the end, in steps of the run: how many are left would soon be wrong."""
    low, likely, high = (
        _ahead(forecast, name)
        for name in ("steps_to_float32_end_low", "steps_to_float32_end", "steps_to_float32_end_high")
    )
    if math.isfinite(high):
        return f"between step {low:.0f} and step {high:.0f}" if low < high else f"at step {low:.0f}"
    return f"at about step {likely:.0f}, not before step {low:.0f}"


def _ahead(forecast: Finding, name: str) -> float:
    steps = forecast.facts.get(name)
    return forecast.detected_step + (steps if isinstance(steps, float | int) else math.inf)


def _sudden(case: Case) -> str:
    incident, facts = case.incident, case.facts
    before = facts.get("previous_loss")
    again = case.latest("bad_steps")
    if again:
        text = f"The loss is not finite in {again['bad_steps']} of {again['of_steps']} steps since step "
        return f"{text}{again['first_bad_step']}."
    text = f"The loss is {facts.get('loss_is', 'not finite')} at step {incident.onset_step}"
    if isinstance(before, float) and math.isfinite(before):
        step = facts.get("previous_step", incident.onset_step - 1)
        text += f"; at step {step} it was {_number(before)}, within its usual range"
    if not facts.get("skipped"):
        return f"{text}."
    who = "The loss scaler skipped that update" if "loss_scale" in facts else "That update was left out"
    return f"{text}. {who}."


def _gradient(case: Case) -> str:
    text = (
        f"The gradients became non-finite at step {case.incident.onset_step} while the loss was still finite"
    )
    return f"{text}{_followed(case)}."


def _followed(case: Case) -> str:
    """Return when the loss was not finite, either."""
    later = [item.detected_step for item in case.incident.findings if item.facts.get("loss_nonfinite")]
    return f"; the loss followed at step {later[0]}" if later else ""


def _weight(case: Case) -> str:
    count = case.facts.get("weight_nonfinite")
    what = "1 weight is" if count == 1 else f"{_number(count)} weights are"
    return f"{what} not finite since step {case.incident.onset_step}."


def _collapse(case: Case) -> str:
    facts = case.scaler or case.facts
    then = (
        "at 0 the next good step writes NaN into every weight"
        if "sink_rows" in facts
        else "the model is not being trained"
    )
    return f"The loss scaler {_skips(facts)}, since step {case.incident.onset_step}: {then}."


def _spike(case: Case) -> str:
    facts = case.facts
    outcome = "came back" if facts.get("outcome") == "recovered" else "stayed high"
    return (
        f"The loss jumped from about {_number(facts.get('best'))} to {_number(facts.get('peak'))} at step "
        f"{_step(facts.get('peak_step'))} and {outcome}."
    )


def _epsilon(case: Case) -> str:
    facts = case.facts
    outcome = {"recovered": " and came back", "persisted": " and stayed high"}.get(str(facts.get("outcome")))
    peak = f"{_number(facts.get('peak'))} at step {_step(facts.get('peak_step'))}"
    return (
        f"One optimizer step, about step {case.incident.onset_step}, threw the model off: the gradient norm "
        f"had decayed to {_number(facts.get('norm_before'))} and was {_number(facts.get('norm'))} right after"
        f"{f'; the loss jumped to {peak}{outcome}' if outcome else ''}."
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
        return f"The gradient norm overflowed in one step, {case.incident.onset_step}; training goes on."
    skips = len(case.incident.findings)
    return f"The loss scaler skipped {counted(skips, 'update')} while it looked for its scale: normal."


def _validation(case: Case) -> str:
    metric = case.facts.get("metric", "a validation metric")
    return f"{metric} is not finite at step {case.incident.onset_step}, while training itself goes on."


def _step(value: object) -> str:
    """Return a step as people count them: all its digits."""
    return f"{value:.0f}" if isinstance(value, float | int) else "?"


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
