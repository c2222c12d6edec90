"""Patterns: where an expression is tighter than its parts, since the same tensor is in it twice. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainvitals.preflight import bounds as b
from trainvitals.preflight.bounds import POSITIVE, Bounds
from trainvitals.preflight.node import RESHAPING, Nodes, kind_of, source_of

_KEEPING = RESHAPING | {"Tile", "BroadcastTo"}
# A comparison with a constant, and what it says of the other side where it holds; `above` it, or below.
_SAYS_ABOVE = {"Greater": True, "GreaterEqual": True, "Less": False, "LessEqual": False}


def is_below_its_maximum(nodes: Nodes, whole: int, taken: int) -> bool:
    """Tell whether `taken` is the maximum of `whole`, as in a softmax written with care."""
    taken = source_of(nodes, taken, _KEEPING)
    if kind_of(nodes, taken) in ("Select", "SelectV2"):  # of `logsumexp`: 0 where the maximum is infinite
        taken = source_of(nodes, nodes[taken].inputs[1], _KEEPING)
    node = nodes.get(taken)
    return node is not None and node.kind == "Max" and _same(nodes, node.inputs[0], whole)


def is_share_of_a_sum(nodes: Nodes, part: int, total: int) -> bool:
    """Tell whether `total` is the sum of `part`, or that and more."""
    node = nodes.get(source_of(nodes, total, _KEEPING))
    if node is None:
        return False
    if node.kind == "Sum":
        return _same(nodes, node.inputs[0], part) or _is_same_expression(nodes, node.inputs[0], part)
    if node.kind in ("Add", "AddV2"):
        return any(_same(nodes, one, part) for one in node.inputs)
    return False


def blended(nodes: Nodes, one: int, other: int) -> tuple[Bounds, Bounds] | None:
    """Return the two that are blended in `a * p + (1 - a) * q`, with `a` in [0, 1]."""
    for left, right in ((one, other), (other, one)):
        factors, counter = _factors(nodes, left), _factors(nodes, right)
        for a, p in (factors, factors[::-1]) if factors else ():
            for rest, q in (counter, counter[::-1]) if counter else ():
                if _is_one_minus(nodes, rest, a) and 0 <= nodes[a].bounds.low <= nodes[a].bounds.high <= 1:
                    return nodes[p].bounds, nodes[q].bounds
    return None


def chosen(nodes: Nodes, inputs: Sequence[int], given: Sequence[Bounds]) -> Bounds:
    """Return the bounds of `where(condition, this, that)`.

    Where the condition is a comparison of a side with a constant that side is narrower; where it is any other
    and a side is a constant, that one stands in for what the condition keeps out: nothing is known then.
    """
    if len(given) != 3:
        return b.unknown(*given)
    sides = [given[1], given[2]]
    condition = nodes.get(source_of(nodes, inputs[0], _KEEPING))
    if condition is not None and condition.kind in _SAYS_ABOVE:
        narrowed = [
            _narrowed(nodes, condition.kind, condition.inputs, inputs[place + 1], side, place == 0)
            for place, side in enumerate(sides)
        ]
        if any(one is not None for one in narrowed):
            pairs = zip(narrowed, sides, strict=True)
            return b.united(*(side if one is None else one for one, side in pairs))
    either = b.united(*sides)
    is_guard = any(side.is_constant for side in sides) and not all(side.is_constant for side in sides)
    return replace(
        either,
        is_known=either.is_known and not is_guard,
        of_weights=either.of_weights or given[0].of_weights,
        of_data=either.of_data or given[0].of_data,
    )


def _narrowed(
    nodes: Nodes, kind: str, compared: Sequence[int], side: int, known: Bounds, is_taken_if_true: bool
) -> Bounds | None:
    left, right = compared[0], compared[1]
    says_above = _SAYS_ABOVE[kind]
    if not _same(nodes, left, side):
        left, right, says_above = right, left, not says_above
    if not _same(nodes, left, side) or not nodes[right].bounds.is_constant:
        return None
    limit = nodes[right].bounds
    is_above = says_above == is_taken_if_true
    is_open = ("Equal" not in kind) == is_taken_if_true
    if not is_above:
        return known.to(known.low, min(known.high, limit.high))
    low = POSITIVE if is_open and limit.low == 0 else limit.low
    return known.to(max(known.low, low), known.high)


def _factors(nodes: Nodes, identity: int) -> tuple[int, int] | None:
    node = nodes.get(source_of(nodes, identity))
    if node is None or node.kind != "Mul" or not all(one in nodes for one in node.inputs):
        return None
    return node.inputs[0], node.inputs[1]


def _is_one_minus(nodes: Nodes, rest: int, a: int) -> bool:
    node = nodes.get(source_of(nodes, rest))
    if node is None or node.kind != "Sub" or not all(one in nodes for one in node.inputs):
        return False
    one = nodes[node.inputs[0]].bounds
    return one.is_constant and one.low == one.high == 1 and _same(nodes, node.inputs[1], a)


def _same(nodes: Nodes, one: int, other: int) -> bool:
    return source_of(nodes, one, _KEEPING) == source_of(nodes, other, _KEEPING)


def _is_same_expression(nodes: Nodes, one: int, other: int) -> bool:
    """`exp(z) / sum(exp(z))` computes its exponential twice."""
    this, that = nodes.get(source_of(nodes, one)), nodes.get(source_of(nodes, other))
    if this is None or that is None or this.kind != that.kind or len(this.inputs) != len(that.inputs):
        return False
    return bool(this.inputs) and all(
        _same(nodes, a, b_) for a, b_ in zip(this.inputs, that.inputs, strict=True)
    )
