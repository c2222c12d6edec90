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
# What the inputs of an operation are called, in their order.
ROLES = {
    "RealDiv": ("the numerator", "the denominator"), "Div": ("the numerator", "the denominator"),
    "Xdivy": ("the numerator", "the denominator"), "Pow": ("the base", "the exponent"),
    "SqrtGrad": ("the root's value", "the incoming gradient"),
    "RsqrtGrad": ("the value of one divided by the root", "the incoming gradient"),
    "AddV2": ("one addend", "the other"),
}  # fmt: skip
MET = {
    "loss": "its loss was not finite",
    "gradient": "its gradients were not finite",
    "weight": "its update was not finite",
    "variable": "it met NaN that was not kept from before the step",
}
HALF_MIN = -65504
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
        since = report.step - 1 if report.weights_bad_since is None else report.weights_bad_since
        did = f"the update of step {since} made them so" if since >= 0 else _came_so(report)
        return [f"The weights were NaN or infinite before step {report.step}{name}: {did}."]
    if report.met:
        return [_another_way(report)]
    why = f" ({report.notes[0]})" if report.notes else ""
    return [f"The failing step was run again, eagerly, and stayed finite{why}."]


def _came_so(report: FirstBad) -> str:
    return "no update had been made" if report.step == 0 else "they were so when this training began"


def _another_way(report: FirstBad) -> str:
    """Return that no cause is named, what was seen instead, and why that may be."""
    met = MET.get(report.met, "it went non-finite elsewhere")
    why = f" ({'; '.join(report.notes[:2])})" if report.notes else ""
    return (
        f"The failing step was run again, eagerly, and was not reproduced: {met}, which is not what the "
        f"training did as far as it is known{why}. What the replay met is not named as the cause."
    )


def autopsy_steps(report: FirstBad) -> list[str]:
    """Return what to look at, and how to see it again."""
    steps = []
    if report.samples and report.n_bad_samples < (report.batch_size or math.inf):
        told = ", ".join(str(place) for place in report.samples[:MAX_PLACES])
        more = f" and {report.n_bad_samples - MAX_PLACES} more" if report.n_bad_samples > MAX_PLACES else ""
        is_one = report.n_bad_samples == 1
        many = "sample index" if is_one else "the sample indices"
        verb = f"(the {_ordinal(report.samples[0] + 1)}) is the bad one" if is_one else "(from 0) are bad"
        steps.append(f"In the batch of step {report.step}, {many} {told}{more} {verb}.")
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
    roles = ROLES.get(report.operation, ())
    if len(roles) == len(ranges) == len(report.inputs):
        parts = [f"{role} was {text}" for role, text in zip(roles, ranges, strict=True)]
        return f"its result has {_bad_values(report)}; {' and '.join(parts)}{_reason(report)}"
    verb = "its input was" if len(ranges) == 1 else "its inputs were"
    return f"its result has {_bad_values(report)}; {verb} {' and '.join(ranges)}"


def _reason(report: FirstBad) -> str:
    """Return what went wrong between these numbers, where it follows from them."""
    output = report.output
    if output is None:
        return ""
    one = f" at sample {report.samples[0]}" if report.n_bad_samples == 1 and report.samples else " there"
    if report.operation in ("RealDiv", "Div") and all(operand.holds(0.0) for operand in report.inputs):
        if output.n_nan == report.n_bad:
            return f"; both are 0{one}, and 0 / 0 is NaN"
        return ""
    if report.operation in ("AddV2", "Add") and output.n_neginf and output.is_half:
        low = min((operand.min or 0.0 for operand in report.inputs), default=0.0)
        if low <= HALF_MIN:
            low_end = f"{HALF_MIN} is float16's minimum, and with a score below about -16 added it is -Inf"
            return f"; {low_end}: of a fully masked row all scores are, and the softmax of such a row is NaN"
    if report.operation == "SqrtGrad" and report.inputs[0].holds(0.0):
        return f"; the root is 0{one}, where its slope is infinite"
    return ""


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{ending}"


def _range(operand: Operand) -> str:
    masked = f", beside {counted(operand.n_neginf, 'value')} of -Inf" if operand.n_neginf else ""
    if operand.min == operand.max:
        return f"{_number(operand.min)} ({operand.dtype}){masked}"
    return f"between {_number(operand.min)} and {_number(operand.max)} ({operand.dtype}){masked}"


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
