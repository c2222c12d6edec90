"""Risky operations in words: what each hazard can do, and how the expression is written safely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import keras

from trainvitals.autopsy.layer_path import LayerPaths
from trainvitals.preflight.finding import Finding
from trainvitals.preflight.hazards import Hazard

MAX_FINDINGS = 20  # of risky operations


@dataclass(frozen=True, slots=True)
class _Words:
    what: str  # with {range} and {dtype}
    advice: str
    snippet: str = ""


_WORDS = {
    "unbounded_log": _Words(
        "the logarithm of what can reach {end} becomes -Infinity or NaN; it is in {range}.",
        "Keep it above 0: add or clip by an epsilon that the dtype holds.",
        "keras.ops.log(keras.ops.maximum(p, 1e-7))",
    ),
    "unbounded_sqrt": _Words(
        "the slope of a root is infinite at 0, and a gradient is NaN there; what it takes is in {range}.",
        "Add an epsilon under the root.",
        "keras.ops.sqrt(x + 1e-7)",
    ),
    "unbounded_power": _Words(
        "the slope of a power with such an exponent is infinite at 0; what it takes is in {range}.",
        "Keep the base above 0.",
        "keras.ops.power(keras.ops.maximum(x, 1e-7), exponent)",
    ),
    "unbounded_division": _Words(
        "a division by what can reach 0 becomes Infinity or NaN; the divisor is in {range}.",
        "Add an epsilon to the divisor, or take the greater of the two.",
        "a / (b + 1e-7)  # or keras.ops.divide_no_nan(a, b)",
    ),
    "unbounded_exp": _Words(
        "the exponential overflows {dtype} beyond {limit:g}, and nothing keeps what it takes below that.",
        "Use the function of Keras's that does the whole at once, or clip what goes in.",
        "keras.ops.softmax(z)  # or ops.logsumexp, ops.softplus, ops.sigmoid, ops.clip(z, -10, 10)",
    ),
    "float16_mask": _Words(
        "a mask of {range} in float16, which ends at -65504: with scores added it becomes -Infinity, "
        "and a softmax over nothing else is NaN.",
        "Take half of the least number of the dtype, or let the softmax mask.",
        "score += (1 - mask) * (numpy.finfo(numpy.float16).min / 2)\n"
        "keras.layers.Softmax()(score, mask)  # or",
    ),
    "float16_epsilon": _Words(
        "the epsilon is 0 in float16, whose least number above 0 is 6e-8: what it should guard can reach 0.",
        "Take an epsilon of 1e-4 or more, or compute this in float32.",
        'keras.ops.cast(x, "float32") + 1e-8',
    ),
}
_LOGITS = " A loss over a probability can work on logits instead (`from_logits=True`)."
_WRITTEN = (
    "the mask was written as {number:g}, beyond the end of float16 at 65504, and is infinite there: a "
    "softmax over nothing else is NaN, and so is 0 times it."
)
_EXP_LIMITS = {"float16": 11.0, "float64": 709.0}


def risky(hazards: Sequence[Hazard], paths: LayerPaths) -> list[Finding]:
    """Return the findings of hazards, one for each place."""
    found: dict[tuple[str, str, int, str], Finding] = {}
    for hazard in hazards:
        finding = _finding(hazard, paths)
        found.setdefault((finding.code, finding.file, finding.line, finding.layer), finding)
    return list(found.values())[:MAX_FINDINGS]


def _finding(hazard: Hazard, paths: LayerPaths) -> Finding:
    words = _WORDS[hazard.code]
    line = hazard.step.place.line
    is_node = line is not None and bool(hazard.step.place.layers) and _is_operation(hazard)
    return Finding(
        code=hazard.code,
        severity="warning",
        what=_WRITTEN.format(number=hazard.written)
        if hazard.written is not None
        else words.what.format(
            range=_range(hazard),
            end="-1" if hazard.step.kind == "Log1p" else "0",
            dtype=hazard.dtype,
            limit=_EXP_LIMITS.get(hazard.dtype, 88.0),
        ),
        advice=words.advice + (_LOGITS if _is_of_a_loss(hazard) else ""),
        snippet=words.snippet,
        layer=paths.of_chain(hazard.step.place.layers),
        file="" if line is None or is_node else line.file,
        line=0 if line is None or is_node else line.line,
        source="" if line is None or is_node else line.code,
    )


def _is_of_a_loss(hazard: Hazard) -> bool:
    """Whether it is the logarithm of what can be a probability, outside of all layers."""
    is_probability = hazard.operand.low >= 0 and hazard.operand.high <= 1
    return hazard.code == "unbounded_log" and is_probability and not hazard.step.place.layers


def _is_operation(hazard: Hazard) -> bool:
    """A node of a functional model has no line in the step: what would be told is who called the model."""
    return not isinstance(hazard.step.place.layers[-1], keras.layers.Layer)


def _range(hazard: Hazard) -> str:
    low, high = hazard.operand.low, hazard.operand.high
    ends = ("-Infinity" if low == -math.inf else f"{low:g}", "Infinity" if high == math.inf else f"{high:g}")
    return ends[0] if low == high else f"[{ends[0]}, {ends[1]}]"
