"""The rules: what bounds an operation's result has, given those of its inputs. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from trainvitals.preflight import bounds as b
from trainvitals.preflight.bounds import INFINITY, POSITIVE, Bounds
from trainvitals.preflight.node import PASSING, Node, Nodes, kind_of, source_of
from trainvitals.preflight.patterns import blended, chosen, is_below_its_maximum, is_share_of_a_sum

Rule = Callable[[Sequence[Bounds]], Bounds]

# Whatever goes in comes out between these.
_RANGES = {
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "OneHot": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Erf": (-1.0, 1.0),
    "Erfc": (0.0, 2.0),
    "Sin": (-1.0, 1.0),
    "Cos": (-1.0, 1.0),
    "Sign": (-1.0, 1.0),
    "Softsign": (-1.0, 1.0),
    "Relu6": (0.0, 6.0),
    "Elu": (-1.0, INFINITY),
    "Selu": (-1.7581, INFINITY),
    # Below -103 it is 0 in float32, which is what everyone lives with who takes it for a positive number.
    "Softplus": (POSITIVE, INFINITY),
    "Cosh": (1.0, INFINITY),
    "LogSoftmax": (-INFINITY, 0.0),
    "L2Loss": (0.0, INFINITY),
    "SquaredDifference": (0.0, INFINITY),
    "SoftmaxCrossEntropyWithLogits": (0.0, INFINITY),
    "SparseSoftmaxCrossEntropyWithLogits": (0.0, INFINITY),
    **dict.fromkeys(("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual"), (0.0, 1.0)),
    **dict.fromkeys(("LogicalAnd", "LogicalOr", "LogicalNot", "IsFinite", "IsNan", "Any", "All"), (0.0, 1.0)),
}
_PROBABILITIES = frozenset({"Sigmoid", "Softmax", "Erf", "Erfc", "Tanh"})
_RANDOM = ("Random", "TruncatedNormal", "Multinomial")  # parts of the names of such kinds
_LINEAR = frozenset(
    {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv1D", "Conv2D", "Conv3D"}
    | {"DepthwiseConv2dNative", "Conv2DBackpropInput", "Conv3DBackpropInputV2", "_FusedMatMul", "Mul"}
)
LINEAR = _LINEAR - {"Mul"}
_OF_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})


def derived(nodes: Nodes, kind: str, inputs: Sequence[int], made: Node) -> Bounds:
    """Return the bounds of a result of one operation.

    Args:
        nodes: What is known of the tensors that went in.
        kind: TensorFlow's name of the operation.
        inputs: The tensors that went in.
        made: Shape and dtype of the result; its bounds are not looked at.
    """
    given = [nodes[one].bounds if one in nodes else Bounds(is_known=False) for one in inputs]
    if kind in _OF_SHAPES:
        return Bounds()
    if kind in PASSING and given:
        place = min(PASSING[kind], len(given) - 1)
        return _as_dtype(given[place], made.dtype) if kind == "Cast" else given[place]
    if kind in _BY_NODES:
        return _BY_NODES[kind](nodes, inputs, given, made)
    if any(part in kind for part in _RANDOM):
        is_uniform = "Uniform" in kind and "Int" not in kind
        return Bounds(0.0, 1.0, of_data=True) if is_uniform else Bounds(of_data=True)
    if kind in _RANGES:
        return replace(b.together(*given).to(*_RANGES[kind]), is_known=True)
    if kind in _RULES and given:
        return _RULES[kind](given)
    if kind in LINEAR:
        is_positive = all(one.low >= 0 for one in given[:2])
        return b.together(*given).to(0.0 if is_positive else -INFINITY, INFINITY)
    if kind == "FusedBatchNormV3":
        return b.together(*given)
    return b.unknown(*given)


def _as_dtype(given: Bounds, dtype: str) -> Bounds:
    """A bound that is too small for float16 becomes 0 there, and 1 - 1e-7 becomes 1."""
    if dtype == "float16":
        return given.to(_rounded(given.low), _rounded(given.high))
    return given


def _rounded(end: float) -> float:
    if end == POSITIVE or math.isinf(end):
        return end
    with np.errstate(over="ignore"):
        rounded = float(np.float16(end))
    return end if math.isinf(rounded) else rounded  # how far beyond tells a mask from what is unbounded


def _monotone(function: Callable[[float], float]) -> Rule:
    def rule(given: Sequence[Bounds]) -> Bounds:
        return given[0].to(function(given[0].low), function(given[0].high))

    return rule


def _exp(end: float) -> float:
    try:
        return max(math.exp(end), POSITIVE)
    except OverflowError:
        return INFINITY


def _log(end: float) -> float:
    if end <= 0:
        return -INFINITY
    return INFINITY if end == INFINITY else math.log(end)


def _sqrt(end: float) -> float:
    return INFINITY if end == INFINITY else math.sqrt(max(end, 0.0))


def _root(given: Sequence[Bounds]) -> Bounds:
    low = max(_sqrt(given[0].low), POSITIVE) if given[0].low > 0 else 0.0
    return replace(given[0], low=low, high=_sqrt(given[0].high), is_known=True)


def _exponential(given: Sequence[Bounds]) -> Bounds:
    return replace(given[0], low=_exp(given[0].low), high=_exp(given[0].high), is_known=True)


def _relu(given: Sequence[Bounds]) -> Bounds:
    return replace(given[0], low=max(given[0].low, 0.0), high=max(given[0].high, 0.0), is_known=True)


def _clip(given: Sequence[Bounds]) -> Bounds:
    return b.least(b.greatest(given[0], given[1]), given[2]) if len(given) == 3 else b.unknown(*given)


def _power(given: Sequence[Bounds]) -> Bounds:
    base, exponent = given[0], given[1]
    if not exponent.is_constant or exponent.low != exponent.high:
        return b.unknown(*given)
    if exponent.low > 0 and exponent.low % 2 == 0:
        return b.squared(base) if exponent.low == 2 else replace(base, low=0.0, high=INFINITY, is_known=True)
    if base.low >= 0:
        low = POSITIVE if base.low > 0 else 0.0
        return base.to(low, 1.0 if base.high <= 1 and exponent.low >= 0 else INFINITY)
    return b.unknown(*given)


_RULES: dict[str, Rule] = {
    "Relu": _relu,
    "Exp": _exponential,
    "Log": _monotone(_log),
    "Log1p": _monotone(lambda end: _log(1 + end)),
    "Expm1": _monotone(lambda end: _exp(end) - 1),
    "Sqrt": _root,
    "Rsqrt": lambda given: b.inverse(_root(given)),
    "Reciprocal": lambda given: b.inverse(given[0]),
    "Inv": lambda given: b.inverse(given[0]),
    "Neg": lambda given: b.negated(given[0]),
    "Abs": lambda given: b.absolute(given[0]),
    "Square": lambda given: b.squared(given[0]),
    "Maximum": lambda given: b.greatest(given[0], given[1]),
    "Minimum": lambda given: b.least(given[0], given[1]),
    "ClipByValue": _clip,
    "Pow": _power,
    "AddN": lambda given: b.summed(b.united(*given), len(given)),
    "ConcatV2": lambda given: b.united(*given[:-1]) if len(given) > 1 else given[0],
    "Pack": lambda given: b.united(*given),
    "Mean": lambda given: given[0],
    "Pad": lambda given: b.united(given[0], Bounds(0.0, 0.0)),
    "PadV2": lambda given: b.united(given[0], given[-1]),
    "ZerosLike": lambda given: Bounds(0.0, 0.0),
    "OnesLike": lambda given: Bounds(1.0, 1.0),
    "BiasAdd": lambda given: b.added(given[0], given[1]),
    "ReadVariableOp": lambda given: given[0],
    "ResourceGather": lambda given: given[0],
}


def _sum(nodes: Nodes, inputs: Sequence[int], given: Sequence[Bounds], made: Node) -> Bounds:
    before = nodes[inputs[0]].shape if inputs[0] in nodes else ()
    count = math.prod(before) / max(math.prod(made.shape), 1)
    return b.summed(given[0], count)


def _product(nodes: Nodes, inputs: Sequence[int], given: Sequence[Bounds], made: Node) -> Bounds:
    if given[0].low < 0:
        return b.unknown(*given)
    return given[0].to(POSITIVE if given[0].low > 0 else 0.0, 1.0 if given[0].high <= 1 else INFINITY)


def _mul(nodes: Nodes, inputs: Sequence[int], given: Sequence[Bounds], made: Node) -> Bounds:
    return b.squared(given[0]) if inputs[0] == inputs[1] else b.multiplied(given[0], given[1])


def _add(nodes: Nodes, inputs: Sequence[int], given: Sequence[Bounds], made: Node) -> Bounds:
    if (mixed := blended(nodes, inputs[0], inputs[1])) is not None:
        return replace(b.united(*mixed), of_data=True)
    total = b.added(given[0], given[1])
    return _as_dtype(total, made.dtype) if total.low > POSITIVE else total


def _sub(nodes: Nodes, inputs: Sequence[int], given: Sequence[Bounds], made: Node) -> Bounds:
    if inputs[0] == inputs[1]:
        return Bounds(0.0, 0.0)
    if is_below_its_maximum(nodes, inputs[0], inputs[1]):
        return replace(b.together(*given), low=-INFINITY, high=0.0, is_known=True)
    if all(kind_of(nodes, source_of(nodes, one)) in _PROBABILITIES for one in inputs):
        return b.added(given[0], b.negated(given[1]))  # either may be the larger, and both may round to 1
    if all(one.of_weights and (one.low > -INFINITY or one.high < INFINITY) for one in given):
        # Two bounded things that belong together: the mean of squares and the square of the mean.
        return b.unknown(*given)
    return b.added(given[0], b.negated(given[1]))


def _div(nodes: Nodes, inputs: Sequence[int], given: Sequence[Bounds], made: Node) -> Bounds:
    if is_share_of_a_sum(nodes, inputs[0], inputs[1]) and given[0].low >= 0:
        return b.together(*given).to(0.0, 1.0)
    return b.multiplied(given[0], b.inverse(given[1]))


def _select(nodes: Nodes, inputs: Sequence[int], given: Sequence[Bounds], made: Node) -> Bounds:
    return chosen(nodes, inputs, given)


_BY_NODES: dict[str, Callable[[Nodes, Sequence[int], Sequence[Bounds], Node], Bounds]] = {
    "Sum": _sum,
    "Prod": _product,
    "Mul": _mul,
    "Add": _add,
    "AddV2": _add,
    "Sub": _sub,
    "RealDiv": _div,
    "Div": _div,
    "Select": _select,
    "SelectV2": _select,
}


def is_linear_output(nodes: Nodes, identity: int) -> bool:
    """Tell whether a tensor is what a layer without an activation returns."""
    node = nodes.get(identity)
    if node is None:
        return False
    if node.kind in ("BiasAdd", "AddV2", "Add"):
        return any(kind_of(nodes, source_of(nodes, one)) in LINEAR for one in node.inputs)
    return node.kind in LINEAR
