"""Watch: which rows tell of a failed step, and whether the training is well again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainvitals.probe.decode import Decoded
from trainvitals.wire import BoolArray

# A loss scaler that starts far too high halves its way down in fewer steps; more in a row is no start.
MANY_SKIPS = 20


@dataclass(slots=True)
class Watch:
    """Reads the pieces of a run in their order."""

    skips: int = 0  # of the loss scaler, in a row, up to the last row
    is_well: bool = True  # the last row

    @property
    def has_many_skips(self) -> bool:
        """Whether the scaler has skipped for so long that it is no normal skip any more."""
        return self.skips >= MANY_SKIPS

    def feed(self, piece: Decoded) -> bool:
        """Return whether one of these steps failed.

        A step whose gradients a loss scaler found not finite is a skip, not a failure, unless its loss is
        not finite either.
        """
        is_skip, failed = skips(piece), failures(piece)
        ends = np.flatnonzero(~is_skip)
        self.skips = self.skips + len(is_skip) if not len(ends) else len(is_skip) - 1 - int(ends[-1])
        self.is_well = not bool(failed[-1] | is_skip[-1])
        return bool(failed.any())


def failures(piece: Decoded) -> BoolArray:
    """Return which of these steps failed."""
    return _has_bad_loss(piece) | (_is_set(piece, "grad_nonfinite") & ~_is_set(piece, "skipped"))


def skips(piece: Decoded) -> BoolArray:
    """Return which of these steps a loss scaler skipped."""
    return _is_set(piece, "skipped")


def last_well(pieces: Sequence[Decoded], before: int) -> int | None:
    """Return the last step below `before` that did not fail; None where these rows hold none."""
    steps = [piece.steps[~failures(piece) & (piece.steps < before)] for piece in pieces]
    return max((int(found[-1]) for found in steps if len(found)), default=None)


def _has_bad_loss(piece: Decoded) -> BoolArray:
    values, present = piece.columns.get("loss", (np.zeros(len(piece.steps)), None))
    bad: BoolArray = ~np.isfinite(np.asarray(values, dtype=np.float64))
    return bad if present is None else bad & present


def _is_set(piece: Decoded, name: str) -> BoolArray:
    values, present = piece.columns.get(name, (np.zeros(len(piece.steps)), None))
    found: BoolArray = np.asarray(values) > 0
    return found if present is None else found & present
