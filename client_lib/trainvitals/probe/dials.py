"""Dials: what the host sets of a traced step between two executions, without another trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import tensorflow as tf

from trainvitals.probe.row import SMALLEST_SAFE_SUM
from trainvitals.probe.thinning import Thinning
from trainvitals.probe.types import Model, Tensor


@dataclass(slots=True)
class Dials:
    """The variables that a step reads. Only the training thread may set them."""

    thinning: Thinning | None  # of the norm pass, where it may be left out
    _smallest: Any
    _has_asked: bool = False

    @classmethod
    def of(cls, model: Model, *, may_thin: bool) -> Self | None:
        """Return dials for a step that is yet to be traced, None under XLA: there is no branch to open.

        `may_thin` is False where the sums are made in every step anyway, as a brake does.
        """
        if model.jit_compile:
            return None
        with tf.init_scope():
            smallest = tf.Variable(SMALLEST_SAFE_SUM, trainable=False, name="trainvitals_smallest")
        return cls(Thinning() if may_thin else None, smallest)

    def smallest(self) -> Tensor:
        """Return the half sum that is usual, in the graph: infinity where no step is to be usual."""
        return tf.convert_to_tensor(self._smallest)  # one operation; `read_value` makes two

    def ask(self) -> None:
        """Have the coming steps write the details of their gradients, until `rest`."""
        self._smallest.assign(np.inf)
        self._has_asked = True

    def rest(self) -> None:
        """Let details be written where they are needed again, and nowhere else."""
        self._smallest.assign(SMALLEST_SAFE_SUM)

    def take_asked(self) -> bool:
        """Return whether anything was asked for since this was last called."""
        has_asked, self._has_asked = self._has_asked, False
        return has_asked
