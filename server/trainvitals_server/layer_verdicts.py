"""Verdicts of what single layers show, and of half precision gone wrong. Pure."""

from __future__ import annotations

from collections.abc import Callable

from trainvitals_server.case import Case


def _dead(case: Case) -> str:
    names = str(case.facts.get("dead_layers") or "").split("\n")
    many = f" and {len(names) - 1} more" if len(names) > 1 else ""
    since = "since the first step" if case.facts.get("from_the_start") else f"since step {_onset(case)}"
    verb, whose = ("get", "their") if many else ("gets", "its")
    return f"Layer {_layer(case)}{many} {verb} no gradient at all {since}: {whose} units are likely dead."


def _vanishing(case: Case) -> str:
    return (
        f"The gradient vanishes before it reaches layer {_layer(case)}: {_number(case, 'layer_norm')} there, "
        f"{_number(case, 'top_norm')} at {case.facts.get('top_layer')}; the loss does not fall."
    )


def _saturation(case: Case) -> str:
    since = "since the first step" if case.facts.get("from_the_start") else f"since step {_onset(case)}"
    return (
        f"Layer {_layer(case)} passes almost no gradient on {since}: {_number(case, 'layer_norm')} there, "
        f"{_number(case, 'top_norm')} at {case.facts.get('top_layer')}; its activation is likely saturated."
    )


def _misuse(case: Case) -> str:
    return (
        f"Updates are too small by about the loss scale of {case.facts.get('loss_scale'):g}, from step "
        f"{_onset(case)} on: the gradient norm is {_number(case, 'norm')}, and the loss does not move."
    )


def _overflow(case: Case) -> str:
    return (
        f"The model forgets what it learned since step {_onset(case)}: the loss went from "
        f"{_number(case, 'best')} back to {_number(case, 'loss')} while the gradient shrank. In float16 that "
        f"is how activations overflow without a trace."
    )


def _onset(case: Case) -> int:
    return case.incident.onset_step


def _layer(case: Case) -> str:
    return case.incident.layer or "?"


def _number(case: Case, name: str) -> str:
    value = case.facts.get(name)
    return f"{value:.4g}" if isinstance(value, float | int) else "?"


LAYER_VERDICTS: dict[str, Callable[[Case], str]] = {
    "dead_units": _dead,
    "vanishing_gradient": _vanishing,
    "saturation": _saturation,
    "scaler_misuse": _misuse,
    "activation_overflow": _overflow,
}
