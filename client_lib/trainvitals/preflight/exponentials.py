"""ExpTaint: which sums are of exponentials that can overflow, as in a softmax written by hand. Pure.

An exponential alone is often meant so, as the variance of a VAE is; where it is divided by its sum, or the
logarithm of the sum is taken, Infinity becomes NaN, and there is a way to write it that does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainvitals.preflight.node import RESHAPING, Node, Nodes
from trainvitals.preflight.trace import Step

_LARGE = 0.5  # a constant of at least this is a term, as the 1 of a sigmoid; less is an epsilon
_MAX_DEPTH = 40


class ExpTaint:
    """Follows sums back to their exponentials."""

    def __init__(self, nodes: Nodes, exponentials: Mapping[int, Step]) -> None:
        """`exponentials`: those of the user's, by the tensor that they made."""
        self._nodes = nodes
        self._exponentials = exponentials

    def of_any(self, identity: int) -> Step | None:
        """Return an exponential that can overflow and is the tensor, or a term of it."""
        return self._exponential(identity) or self.of_sum(identity)

    def of_sum(self, identity: int) -> Step | None:
        """Return an exponential that can overflow and is a term of the sum that the tensor is."""
        return self._in_sum(identity, 0)

    def _in_sum(self, identity: int, depth: int) -> Step | None:
        node = self._nodes.get(identity)
        if node is None or depth > _MAX_DEPTH or not node.inputs:
            return None
        if node.kind in RESHAPING:
            return self._in_sum(node.inputs[0], depth + 1)
        if node.kind == "Sum":
            return self._term(node.inputs[0], depth)
        if node.kind in ("AddV2", "Add"):
            return self._in_addition(node, depth)
        return None

    def _in_addition(self, node: Node, depth: int) -> Step | None:
        for one, other in (node.inputs, node.inputs[::-1]):
            beside = self._nodes.get(other)
            if beside is None:
                continue
            is_term = beside.bounds.is_constant and beside.bounds.low >= _LARGE
            if is_term or self._term(other, depth) is not None:
                if (found := self._term(one, depth)) is not None:
                    return found
            elif (found := self._in_sum(one, depth + 1)) is not None:
                return found
        return None

    def _term(self, identity: int, depth: int) -> Step | None:
        return self._exponential(identity) or self._in_sum(identity, depth + 1)

    def _exponential(self, identity: int) -> Step | None:
        node = self._nodes.get(identity)
        while node is not None and node.kind in RESHAPING and node.inputs:
            identity = node.inputs[0]
            node = self._nodes.get(identity)
        step = self._exponentials.get(identity)
        if step is None:
            return None
        bounds = self._nodes[step.inputs[0]].bounds
        return step if bounds.is_known and bounds.is_of_both and bounds.high == math.inf else None
