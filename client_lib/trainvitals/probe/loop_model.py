"""LoopModel: what a capture asks of a model, for a loop that shows its variables only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainvitals.probe.types import Optimizer


class LoopModel:
    """Grows with each `observe` that is traced; the optimizers are attributes, as they are of a model."""

    optimizer: Optimizer = None

    def __init__(self) -> None:
        self.trainable_variables: list[Any] = []
        self.non_trainable_variables: list[Any] = []

    @property
    def variables(self) -> list[Any]:
        """All of them."""
        return [*self.trainable_variables, *self.non_trainable_variables]

    def add(self, trained: Sequence[Any], moving: Sequence[Any], optimizer: Optimizer) -> None:
        """Add what is not known yet; `moving` are variables that the step changes otherwise."""
        known = {id(one) for one in self.variables}
        self.trainable_variables += _new(trained, known)
        self.non_trainable_variables += _new(moving, known)
        known = {id(one) for one in vars(self).values()}
        if optimizer is not None and id(optimizer) not in known:
            setattr(self, f"optimizer_{len(known)}", optimizer)


def _new(variables: Sequence[Any], known: set[int]) -> list[Any]:
    return [one for one in {id(one): one for one in variables}.values() if id(one) not in known]
