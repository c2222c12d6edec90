"""What the replay of the failing step saw, in words. Pure."""

from __future__ import annotations

import math

from trainvitals_server.detect.recurrence import counted
from trainvitals_server.first_bad import FirstBad, Operand

MAX_PLACES = 8
# What a person would call an operation whose name does not say it.
MEANINGS = {
    "RealDiv": "a division", "Div": "a division", "Xdivy": "a division", "Reciprocal": "one divided by it",
    "Inv": "one divided by it", "AddV2": "an addition", "Mul": "a multiplication", "Sub": "a subtraction",
    "MatMul": "a matrix product", "BatchMatMulV2": "a matrix product", "Einsum": "a matrix product",
    "Log": "a logarithm", "Log1p": "the logarithm of one more", "Xlogy": "a product with a logarithm",
    "Exp": "an exponential", "Pow": "a power", "Sqrt": "a square root",
    "Rsqrt": "one divided by a square root",
    "SelectV2": "a `where`",
}  # fmt: skip
PART_WORDS = {"input": "inputs", "label": "labels", "sample_weight": "sample weights"}


def autopsy_lines(report: FirstBad) -> list[str]:
    """Return what the replay saw, in words."""
    if report.found == "operation":
        first = f"the first operation with a bad result is {_named(report)}, {where(report)}"
        return [f"The failing step was run again, eagerly: {first}; {made(report)}."]
    if report.found in PART_WORDS:
        return [f"The failing step was looked at again: {part(report)}."]
    if report.found == "weight":
        name = f" (first `{report.layer}`)" if report.layer else ""
        return [f"The weights were NaN or infinite before this step{name}: an earlier update did it."]
    why = f" ({report.notes[0]})" if report.notes else ""
    return [f"The failing step was run again, eagerly, and stayed finite{why}."]


def autopsy_steps(report: FirstBad) -> list[str]:
    """Return what to look at, and how to see it again."""
    steps = []
    if report.samples and report.n_bad_samples < (report.batch_size or math.inf):
        told = ", ".join(str(place) for place in report.samples[:MAX_PLACES])
        more = f" and {report.n_bad_samples - MAX_PLACES} more" if report.n_bad_samples > MAX_PLACES else ""
        many = "this sample" if report.n_bad_samples == 1 else "these samples"
        place = f"of the batch of step {report.step}, counted from 0"
        steps.append(f"Look at {many} {place}: {told}{more}.")
    if report.bundle:
        steps.append(f"See it again on the training machine: trainvitals replay {report.bundle}")
    return steps


def where(report: FirstBad) -> str:
    """Return the place of an operation in words."""
    if report.direction == "update":
        return "in the optimizer's update"
    inside = f"in layer `{report.layer}`" if report.layer else "in the loss"
    return inside + (f" at {report.place}" if report.place else "")


def _named(report: FirstBad) -> str:
    """Return the operation with what a person would call it."""
    meaning = MEANINGS.get(report.operation)
    words = [meaning] if meaning else []
    if report.direction == "backward":
        words.append(
            f"in the gradient of `{report.gradient_of}`" if report.gradient_of else "in the gradient"
        )
    return f"`{report.operation}`" + (f" ({', '.join(words)})" if words else "")


def made(report: FirstBad) -> str:
    """Return what went in and what came out."""
    ranges = [_range(operand) for operand in report.inputs if operand.min is not None]
    if not ranges:
        return f"its result has {_bad_values(report)}"
    verb = "its input was" if len(ranges) == 1 else "its inputs were"
    return f"its result has {_bad_values(report)}; {verb} {' and '.join(ranges)}"


def _range(operand: Operand) -> str:
    if operand.min == operand.max:
        return f"{_number(operand.min)} ({operand.dtype})"
    return f"between {_number(operand.min)} and {_number(operand.max)} ({operand.dtype})"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value + 0.0:.5g}"  # no -0


def _bad_values(report: FirstBad) -> str:
    counts = report.output and {
        "NaN": report.output.n_nan, "+Inf": report.output.n_posinf, "-Inf": report.output.n_neginf,
    }  # fmt: skip
    told = [f"{counted(count, 'value')} of {name}" for name, count in (counts or {}).items() if count]
    return " and ".join(told) or (counted(report.n_bad, "bad value") if report.n_bad else "NaN or Inf")


def part(report: FirstBad) -> str:
    """Return what of the batch was bad."""
    operand = report.inputs[0] if report.inputs else None
    name = f" (`{operand.name}`)" if operand is not None and operand.name else ""
    column = f", in column {report.feature}" if report.feature is not None else ""
    values = counted(report.n_bad, "value") if report.n_bad else "values"
    verb = "is" if report.n_bad == 1 else "are"
    return f"{values} of the batch's {PART_WORDS[report.found]}{name} {verb} {_fault(operand)}{column}"


def _fault(operand: Operand | None) -> str:
    is_bad = operand is None or operand.n_nan + operand.n_posinf + operand.n_neginf > 0
    return "NaN or infinite" if is_bad else "outside the range that the loss is defined for"
