"""What a row of one traced step holds, and the variables that its numbers are about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainvitals.probe.row import BLOCK_HEAD, ROW_HEAD, details_width


@dataclass(frozen=True, slots=True)
class Block:
    """What one call of `apply` adds to a row: the variables with a gradient, and how to read the rest."""

    variables: tuple[Any, ...]
    scaling: str  # "", "static" or "dynamic"
    is_main: bool  # of the optimizer that the model was compiled with
    has_rate: bool
    is_whole: bool  # the details are in every row
    is_unscaled: bool  # the gradients, when `apply` gets them
    details: tuple[tuple[slice, Any], ...] = field(default=(), compare=False)  # else: the rings of its parts
    tells_skip: bool = False  # the last number says whether the scaler skips the update
    is_thinned: bool = False  # the half sums are not in every row

    @property
    def width(self) -> int:
        """Return how many numbers the block takes in a row."""
        count = len(self.variables)
        return BLOCK_HEAD + (details_width(count) if self.is_whole else count) + self.tells_skip


@dataclass(frozen=True, slots=True)
class RowShape:
    """What a row of one traced step holds."""

    blocks: tuple[Block, ...]
    has_loss: bool

    @property
    def width(self) -> int:
        """Return how many numbers a row takes."""
        return ROW_HEAD + sum(block.width for block in self.blocks)

    @property
    def key(self) -> object:
        """Return what two traces of the same step have in common: they share a ring."""
        blocks = tuple(
            (
                tuple(id(variable) for variable in block.variables),
                block.scaling,
                block.is_main,
                block.has_rate,
                block.is_whole,
                block.is_unscaled,
                block.tells_skip,
                block.is_thinned,
            )
            for block in self.blocks
        )
        return blocks, self.has_loss
