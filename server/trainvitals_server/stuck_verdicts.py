"""Verdicts of runs that do not fail but do not learn, and of what goes wrong beside the training. Pure."""

from __future__ import annotations

from collections.abc import Callable

from trainvitals_server.case import Case


def _plateau(case: Case) -> str:
    rows, classes = case.facts.get("plateau_rows"), case.facts.get("classes")
    level, noise = case.facts.get("level"), case.facts.get("noise")
    if classes:
        text = f"The loss does not fall: it has stayed at {_number(case, 'level')} since step {_onset(case)}"
        return f"{text}, exactly what guessing among {classes} classes costs."
    around = _number(case, "level", 3)
    if isinstance(level, float) and isinstance(noise, float) and noise > 0:
        around = f"{level:.3g} ± {noise:.2g}"
    return (
        f"The loss does not fall: it stays around {around} since step {_onset(case)}, {rows} logged steps, "
        f"no better than where it began (around {_number(case, 'start', 3)})."
    )


def _oscillation(case: Case) -> str:
    how = "bounces up and down from one step to the next" if case.facts.get("alternates") else "jumps about"
    return (
        f"The loss {how} since step {_onset(case)}, between {_number(case, 'low')} and "
        f"{_number(case, 'high')}, and does not get better."
    )


def _constant(case: Case) -> str:
    how, onset = case.facts.get("how"), _onset(case)
    if how == "zero_gradient":
        return f"Nothing is learned since step {onset}: every weight's gradient is exactly 0."
    level = _number(case, "level")
    if how == "bad_gradient":
        return f"The loss is exactly {level} since step {onset} while the gradients are not finite."
    return (
        f"The loss is exactly {level} since step {onset}, from one step to the next: it may be a hidden NaN."
    )


def _overfitting(case: Case) -> str:
    return (
        f"The model overfits since step {_onset(case)}: val_loss rose from "
        f"{_number(case, 'best_validation')} to {_number(case, 'validation')} while the training loss went "
        f"on falling."
    )


def _metric(case: Case) -> str:
    name = case.facts.get("metric")
    return f"The metric {name} is not finite at step {_onset(case)}, while the loss is fine."


def _runaway(case: Case) -> str:
    if case.facts.get("impossible"):
        return (
            f"The loss is negative since step {_onset(case)} and fell to {_number(case, 'level')} (median "
            f"of the last {case.facts.get('block', 8)} steps); a cross-entropy cannot be negative while all "
            "labels are in range."
        )
    return (
        f"The loss falls without bound since step {_onset(case)}: it is {_number(case, 'loss')}, and its "
        f"size at the start was {_number(case, 'size')}."
    )


def _stuck_scale(case: Case) -> str:
    return (
        f"The loss scale is stuck at {_number(case, 'stuck_scale')} since step {_onset(case)}: "
        f"{case.facts.get('skips')} of {case.facts.get('stuck_rows')} updates were skipped, and the loss "
        f"does not fall."
    )


def _slow(case: Case) -> str:
    return (
        f"Steps are slow since step {_onset(case)}: {_number(case, 'step_time')} s each, it was "
        f"{_number(case, 'usual_step_time')} s before."
    )


def _onset(case: Case) -> int:
    return case.incident.onset_step


def _number(case: Case, name: str, digits: int = 4) -> str:
    value = case.facts.get(name)
    return f"{value:.{digits}g}" if isinstance(value, float | int) else "?"


STUCK_VERDICTS: dict[str, Callable[[Case], str]] = {
    "plateau": _plateau,
    "oscillation": _oscillation,
    "silent_constant": _constant,
    "overfitting": _overfitting,
    "metric_nonfinite": _metric,
    "runaway_negative_loss": _runaway,
    "loss_scale_stuck_low": _stuck_scale,
    "slow_steps": _slow,
}
