"""Seen: what the training saw of a failing step, and whether its replay went the same way. Pure.

A replay can go another way: numbers that nobody seeds, the rounding of a compiled step, a state that is not
quite that of before the step. What such a replay meets first is not what went wrong in the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainvitals.probe.decode import Decoded

Met = Literal["", "loss", "gradient", "weight", "variable"]

_REPLAYED = {
    "": "replayed, all of it stayed finite",
    "loss": "replayed, the loss was not finite",
    "gradient": "replayed, the loss was finite and the gradients were not",
    "weight": "replayed, loss and gradients were finite, and the update was not",
}
_REASONS = {
    "before_step": "random numbers without a seed, or the rounding of the compiled step, may be other ones",
    "mostly_before_step": "some weights had had their update of that step already",
    "snapshot": "the weights are those of some steps before",
    "after_step": "the weights are those from after the step",
    "none": "the weights from before the step were not kept",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """Whether the loss and the gradients of a step were bad in the training; None: not known."""

    loss: bool | None = None
    gradients: bool | None = None

    def in_words(self) -> str:
        """Return what was not finite, and what was."""
        if self.loss is None:
            return "in the training the gradients were not finite"
        if not self.loss:
            return "in the training the loss was finite and the gradients were not"
        tail = " and the gradients were" if self.gradients is False else ""
        return f"in the training the loss was not finite{tail}"


UNSEEN = Seen()
HIDDEN = (
    "in the compiled step the loss stayed finite: a ReLU that is fused with the operation before it makes 0 "
    "of a NaN, which the gradients then show"
)


def seen_in(pieces: Sequence[Decoded], step: int) -> Seen:
    """Return what the rows tell of one step."""
    for piece in pieces:
        place = int(np.searchsorted(piece.steps, step))
        if place < len(piece.steps) and int(piece.steps[place]) == step:
            loss, count = _value(piece, "loss", place), _value(piece, "grad_nonfinite", place)
            return Seen(
                None if loss is None else not bool(np.isfinite(loss)), None if count is None else count > 0
            )
    return UNSEEN


def goes_another_way(seen: Seen, stage: Met, *, is_plain: bool, has_gradients: bool) -> bool:
    """Tell whether a replay that went bad at `stage` went bad elsewhere than the training did.

    Args:
        seen: What the training saw.
        stage: What the replay saw first.
        is_plain: The step is Keras's own: the loss that was seen is the one that is differentiated, and its
            gradients are those that the optimizer is given.
        has_gradients: The replay asked a tape for gradients.
    """
    if stage == "weight" and seen.gradients and has_gradients:
        return True
    if not is_plain or stage == "loss":  # of which a training's finite loss says nothing: `is_hidden`
        return False
    return bool(stage) and (seen.loss is True or (stage == "gradient" and seen.gradients is False))


def is_hidden(seen: Seen, stage: Met) -> bool:
    """Return whether the replay's loss is not finite and the training's was: it may be the same way.

    A compiled step fuses a ReLU with what comes before it, and then its maximum of 0 and NaN is 0: the NaN is
    gone from the loss, and is found in the gradients, which are taken of the same numbers.
    """
    return stage == "loss" and seen.loss is False


def difference(seen: Seen, stage: Met, weights_from: str) -> tuple[str, str]:
    """Return what the training and the replay saw, and why that may be so."""
    return f"{seen.in_words()}; {_REPLAYED[stage]}", _REASONS[weights_from]


def _value(piece: Decoded, name: str, place: int) -> float | None:
    values, present = piece.columns.get(name, (None, None))
    if values is None or (present is not None and not present[place]):
        return None
    return float(np.asarray(values)[place])
