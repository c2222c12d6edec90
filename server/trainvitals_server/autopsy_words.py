"""What the replay of the failing step saw, in words. Pure."""

from __future__ import annotations

import math

from trainvitals_server.detect.recurrence import counted
from trainvitals_server.first_bad import FirstBad, Operand

MAX_PLACES = 8
PART_WORDS = {"input": "inputs", "label": "labels", "sample_weight": "sample weights"}


def autopsy_lines(report: FirstBad) -> list[str]:
    """Return what the replay saw, in words."""
    if report.found == "operation":
        return [_operation_line(report)]
    if report.found in PART_WORDS:
        return [f"The step was replayed: {part(report)}."]
    if report.found == "weight":
        since = f" since step {report.weights_bad_since}" if report.weights_bad_since is not None else ""
        name = f" (first in `{report.layer}`)" if report.layer else ""
        return [f"The step was replayed: the weights were not finite before it already{name}{since}."]
    why = f": {report.notes[0]}" if report.notes else ""
    return [f"The step was replayed once, without compilation, and stayed finite{why}."]


def autopsy_steps(report: FirstBad) -> list[str]:
    """Return what to look at, and how to see it again."""
    steps = []
    if report.samples and report.n_bad_samples < (report.batch_size or math.inf):
        told = ", ".join(str(place) for place in report.samples[:MAX_PLACES])
        more = f" and {report.n_bad_samples - MAX_PLACES} more" if report.n_bad_samples > MAX_PLACES else ""
        steps.append(
            f"Look at these samples of the batch of step {report.step} (counted from 0): {told}{more}."
        )
    if report.bundle:
        steps.append(f"See it again on the training machine: trainvitals replay {report.bundle}")
    return steps


def where(report: FirstBad) -> str:
    """Return the place of an operation in words."""
    if report.direction == "update":
        return "in the optimizer's update"
    inside = f"in layer `{report.layer}`" if report.layer else "in the loss"
    back = "on the way back " if report.direction == "backward" else ""
    return f"{back}{inside}" + (f" ({report.place})" if report.place else "")


def _operation_line(report: FirstBad) -> str:
    return f"The step was replayed: first wrong is `{report.operation}` {where(report)}: {made(report)}."


def made(report: FirstBad) -> str:
    """Return what went in and what came out."""
    ranges = [_range(operand) for operand in report.inputs if operand.min is not None]
    went_in = f" out of {' and '.join(ranges)}" if ranges else ""
    return f"`{report.operation}` made {_bad_values(report)}{went_in}"


def _range(operand: Operand) -> str:
    if operand.min == operand.max:
        return f"{operand.dtype} {operand.min:.6g}"
    return f"{operand.dtype} from {operand.min:.6g} to {operand.max:.6g}"


def _bad_values(report: FirstBad) -> str:
    counts = report.output and {
        "NaN": report.output.n_nan, "+Inf": report.output.n_posinf, "-Inf": report.output.n_neginf,
    }  # fmt: skip
    told = [f"{count} {name}" for name, count in (counts or {}).items() if count]
    return " and ".join(told) or (counted(report.n_bad, "non-finite value") if report.n_bad else "NaN or Inf")


def part(report: FirstBad) -> str:
    """Return what of the batch was bad."""
    operand = report.inputs[0] if report.inputs else None
    name = f" in `{operand.name}`" if operand is not None and operand.name else ""
    column = f", all in column {report.feature}" if report.feature is not None else ""
    return (
        f"{report.n_bad or 'some'} of the batch's {PART_WORDS[report.found]} {_fault(report)}{name}{column}"
    )


def _fault(report: FirstBad) -> str:
    operand = report.inputs[0] if report.inputs else None
    bad = operand is None or operand.n_nan + operand.n_posinf + operand.n_neginf > 0
    verb = "is" if report.n_bad == 1 else "are"
    return f"{verb} NaN or infinite" if bad else f"{verb} outside the range that the loss is defined for"
