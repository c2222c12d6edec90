"""Node: one tensor of the step that was traced, by what made it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trainvitals.preflight.bounds import Bounds

Leaf = Literal["batch", "variable", "constant"]
# They hand on the numbers of one of their inputs, whichever elements of it, and no others.
PASSING = {
    **dict.fromkeys(("Reshape", "Transpose", "ExpandDims", "Squeeze", "Identity", "IdentityN", "Cast"), 0),
    **dict.fromkeys(("StopGradient", "PreventGradient", "Slice", "StridedSlice", "GatherV2", "GatherNd"), 0),
    **dict.fromkeys(("Tile", "BroadcastTo", "SplitV", "Unpack", "ReverseV2", "Roll", "EnsureShape"), 0),
    **dict.fromkeys(("MaxPool", "AvgPool", "Snapshot", "CheckNumerics", "MatrixDiagPartV3", "TopKV2"), 0),
    **dict.fromkeys(("Max", "Min", "ReverseSequence", "MirrorPad"), 0),
    "Split": 1,
}
# Those of them that hand on every element once.
RESHAPING = frozenset({"Reshape", "ExpandDims", "Squeeze", "Identity", "Cast", "StopGradient", "EnsureShape"})


@dataclass(frozen=True, slots=True)
class Node:
    """A tensor: the kind of operation that made it, or which leaf it is."""

    kind: str
    bounds: Bounds
    inputs: tuple[int, ...] = ()  # what identifies the tensors that it was made of
    shape: tuple[int, ...] = ()
    dtype: str = ""


Nodes: TypeAlias = Mapping[int, Node]


def source_of(nodes: Nodes, identity: int, through: frozenset[str] = RESHAPING) -> int:
    """Return the tensor that this one is but for its shape or dtype."""
    node = nodes.get(identity)
    while node is not None and node.kind in through and node.inputs:
        identity = node.inputs[0]
        node = nodes.get(identity)
    return identity


def kind_of(nodes: Nodes, identity: int) -> str:
    """Return the kind of a tensor; empty where it is not known."""
    node = nodes.get(identity)
    return "" if node is None else node.kind
