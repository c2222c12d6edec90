"""Hazards: operations of the user's whose operand can reach where they are undefined, or overflow. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainvitals.preflight.bounds import Bounds
from trainvitals.preflight.exponentials import ExpTaint
from trainvitals.preflight.node import Node, Nodes, source_of
from trainvitals.preflight.trace import Step

FLOAT16_END = 6e4  # float16 ends at 65504: nothing can be added to what is beyond this
# Where an exponential overflows; one that begins with this share of it at step one will get there.
_EXP_ENDS = {"float16": 11.08, "bfloat16": 88.7, "float32": 88.7, "float64": 709.7}
_NEAR = 0.7
_DIVIDING = {"RealDiv": 1, "Div": 1, "Reciprocal": 0, "Inv": 0, "Rsqrt": 0}
_ADDING = frozenset({"AddV2", "Add", "Sub"})
_MAX_LOOKED_AT = 64  # tensors before a mask
_SELECTING = frozenset({"Select", "SelectV2"})


@dataclass(frozen=True, slots=True)
class Hazard:
    """What is wrong with one operation, by the code of its finding."""

    code: str
    step: Step
    operand: Bounds
    dtype: str = "float32"
    written: float | None = None  # of a mask that is infinite in float16: what it was before


def hazards(nodes: Nodes, steps: Sequence[Step]) -> list[Hazard]:
    """Return what is risky among the user's own operations, in their order."""
    taint = ExpTaint(nodes, {step.output: step for step in steps if step.kind == "Exp" and step.is_own})
    found = []
    for step in steps:
        if not step.is_own or any(one not in nodes for one in step.inputs):
            continue
        hazard = _of_float16(nodes, step) or _of_exp(nodes, step, taint) or _of_zero(nodes, step)
        if hazard is not None:
            found.append(hazard)
    return found


def _of_zero(nodes: Nodes, step: Step) -> Hazard | None:
    """An operation at 0: a logarithm, a root, a fractional power, a division."""
    place = _DIVIDING.get(step.kind, 0)
    node = nodes[step.inputs[place]]
    code = _code_of(step, nodes, node.bounds)
    if code is None or not (node.bounds.is_known and node.bounds.is_of_both):
        return None
    if code == "unbounded_sqrt" and node.shape == () and node.bounds.low == 0:
        return None  # the root of a mean over the whole batch is 0 for none that anybody trains with
    if _has_lost_epsilon(nodes, step.inputs[place]):
        code = "float16_epsilon"
    return Hazard(code, step, node.bounds, node.dtype)


def _code_of(step: Step, nodes: Nodes, operand: Bounds) -> str | None:
    if step.kind == "Log":
        return "unbounded_log" if operand.low <= 0 else None
    if step.kind == "Log1p":
        return "unbounded_log" if operand.low <= -1 else None
    if step.kind == "Sqrt":
        return "unbounded_sqrt" if operand.low <= 0 else None
    if step.kind in _DIVIDING:
        return "unbounded_division" if operand.holds_zero else None
    if step.kind == "Pow":
        return _power(nodes[step.inputs[1]].bounds, operand)
    return None


def _power(exponent: Bounds, base: Bounds) -> str | None:
    if not exponent.is_constant or exponent.low != exponent.high or not base.holds_zero:
        return None
    is_steep = exponent.low < 0 or (0 < exponent.low < 1)
    return "unbounded_power" if is_steep else None


def _has_lost_epsilon(nodes: Nodes, identity: int) -> bool:
    """Tell whether something was added to an operand, or taken as its least, that is 0 in float16."""
    node = nodes.get(source_of(nodes, identity))
    if node is None or node.kind not in ("AddV2", "Add", "Maximum", "ClipByValue") or node.dtype != "float16":
        return False
    return any(_is_zero(nodes.get(one)) for one in node.inputs)


def _is_zero(node: Node | None) -> bool:
    return node is not None and node.bounds.is_constant and node.bounds.low == node.bounds.high == 0


def _of_float16(nodes: Nodes, step: Step) -> Hazard | None:
    """A mask that leaves float16 when it is added, or that left it when it became float16."""
    if nodes[step.output].dtype != "float16":
        return None
    if step.kind in _ADDING:
        left, right = (nodes[one].bounds for one in step.inputs)
        for mask, scores in ((left, right), (right, left)):
            if not mask.of_weights and scores.of_weights and _is_at_the_end(mask):
                return Hazard("float16_mask", step, mask, "float16", _written(nodes, step.inputs))
    if step.kind in _SELECTING or step.kind == "Mul":
        for side in (nodes[one].bounds for one in step.inputs[-2:]):
            if side.is_constant and side.low == side.high and math.isinf(side.low):
                return Hazard("float16_mask", step, side, "float16", _written(nodes, step.inputs))
    return None


def _written(nodes: Nodes, inputs: Sequence[int]) -> float | None:
    """Return the constant that float16 has no room for, where it had another dtype before."""
    waiting, seen = list(inputs), set[int]()
    while waiting and len(seen) < _MAX_LOOKED_AT:
        identity = waiting.pop(0)
        node = nodes.get(identity)
        if node is None or identity in seen:
            continue
        seen.add(identity)
        waiting.extend(node.inputs)
        ends = [end for end in (node.bounds.low, node.bounds.high) if math.isfinite(end)]
        largest = max(ends, key=abs, default=0.0)
        if node.bounds.is_constant and node.dtype != "float16" and abs(largest) >= FLOAT16_END:
            return largest
    return None


def _is_at_the_end(mask: Bounds) -> bool:
    """Numbers from the batch that are merely unbounded are no mask; those times a constant may be."""
    ends = (mask.low, mask.high)
    is_told = mask.is_known and (mask.is_constant or all(map(math.isfinite, ends)))
    return is_told and any(abs(end) >= FLOAT16_END for end in ends)


def _of_exp(nodes: Nodes, step: Step, taint: ExpTaint) -> Hazard | None:
    if step.kind == "Exp":
        node = nodes[step.inputs[0]]
        end = _EXP_ENDS.get(node.dtype, _EXP_ENDS["float32"])
        is_bounded_beyond = (
            node.bounds.is_of_both and end <= node.bounds.high < math.inf and node.bounds.is_known
        )
        if is_bounded_beyond or (node.bounds.of_weights and step.peak > _NEAR * end):
            return Hazard("unbounded_exp", step, node.bounds, node.dtype)
        return None
    origin = None
    if step.kind in ("RealDiv", "Div", "Reciprocal", "Inv"):
        origin = taint.of_sum(step.inputs[_DIVIDING[step.kind]])
    elif step.kind == "Log":
        origin = taint.of_sum(step.inputs[0])
    elif step.kind == "Log1p":
        origin = taint.of_any(step.inputs[0])
    if origin is None:
        return None
    node = nodes[origin.inputs[0]]
    return Hazard("unbounded_exp", origin, node.bounds, node.dtype)
