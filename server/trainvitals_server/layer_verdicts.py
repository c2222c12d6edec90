"""Verdicts of what single layers show, and of half precision gone wrong. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainvitals_server.case import Case
from trainvitals_server.detect.output_proof import ALL_DEAD, SATURATED
from trainvitals_server.detect.outputs import FLOAT16_END

MAX_NAMED = 4


def _dead(case: Case) -> str:
    names = str(case.facts.get("dead_layers") or "").split("\n")
    since = "since the first step" if case.facts.get("from_the_start") else f"since step {_onset(case)}"
    share = case.facts.get("dead_share")
    if case.facts.get("by_outputs"):
        return _silent(case, since, share if isinstance(share, float) else 1.0)
    state = "its units are likely dead"
    if isinstance(share, float):
        step, name = case.facts.get("output_step"), case.facts.get("dead_layer")
        state = (
            f"in step {step}, no unit of {name} fired" if share >= ALL_DEAD else "but its units are not dead"
        )
    text = f"Layer {_layer(case)} gets no gradient at all {since}: {state}."
    place = names.index(_layer(case)) if _layer(case) in names else len(names) - 1
    below, above = names[:place], names[place + 1 :]
    if below:
        verb = "gets" if len(below) == 1 else "get"
        text += f" {_list(below)}, further from the loss, {verb} none either, since none passes through it."
    if above:
        text += f" {_list(above)}, nearer to the loss, {'is' if len(above) == 1 else 'are'} likely dead, too."
    return text


def _silent(case: Case, since: str, share: float) -> str:
    many = "No unit" if share == 1 else "Hardly any unit"
    return f"{many} of layer {_layer(case)} has fired {since}: they give 0 for every sample and do not learn."


def _vanishing(case: Case) -> str:
    return (
        f"The gradient vanishes before it reaches layer {_layer(case)}: {_number(case, 'layer_norm')} there, "
        f"{_number(case, 'top_norm')} at {case.facts.get('top_layer')}; the loss does not fall."
    )


def _saturation(case: Case) -> str:
    since = "since the first step" if case.facts.get("from_the_start") else f"since step {_onset(case)}"
    share, name = case.facts.get("saturated_share"), case.facts.get("saturated_layer")
    if case.facts.get("by_outputs"):
        return (
            f"The outputs of layer {_layer(case)} are at the limits of its {case.facts.get('activation')} "
            f"{since}, where it passes almost no gradient on, and the loss does not fall."
        )
    state = "its activation is likely saturated"
    if isinstance(share, float):
        many = f"a share of {share:.2g} of the outputs of {name} is at the limits of its activation"
        state = many if share >= SATURATED else f"but only {many}"
    return (
        f"Layer {_layer(case)} passes almost no gradient on {since}: {_number(case, 'layer_norm')} there, "
        f"{_number(case, 'top_norm')} at {case.facts.get('top_layer')}; {state}."
    )


def _misuse(case: Case) -> str:
    return (
        f"The gradients are too small by about the loss scale of {case.facts.get('loss_scale'):g}, from step "
        f"{_onset(case)} on: their norm is {_number(case, 'norm', 3)} where the optimizer applies them, and "
        f"the loss does not move."
    )


def _overflow(case: Case) -> str:
    size = case.facts.get("largest_output")
    if "best" not in case.facts and isinstance(size, float):
        return (
            f"The outputs of layer {_layer(case)} grow towards the end of float16: the largest was "
            f"{size:.4g} in step {case.incident.detected_step}, and {FLOAT16_END / size:.2g} times that is "
            f"infinite."
        )
    return (
        f"The model forgets what it learned since step {_onset(case)}: the loss went from "
        f"{_number(case, 'best')} back to {_number(case, 'loss')} while the gradient shrank. In float16 that "
        f"is how activations overflow without a trace."
    )


def _onset(case: Case) -> int:
    return case.incident.onset_step


def _layer(case: Case) -> str:
    return case.incident.layer or "?"


def _number(case: Case, name: str, digits: int = 4) -> str:
    value = case.facts.get(name)
    return f"{value:.{digits}g}" if isinstance(value, float | int) else "?"


def _list(names: Sequence[str]) -> str:
    more = "" if len(names) <= MAX_NAMED else f" and {len(names) - MAX_NAMED} more"
    return ", ".join(names[:MAX_NAMED]) + more


LAYER_VERDICTS: dict[str, Callable[[Case], str]] = {
    "dead_units": _dead,
    "vanishing_gradient": _vanishing,
    "saturation": _saturation,
    "scaler_misuse": _misuse,
    "activation_overflow": _overflow,
}
