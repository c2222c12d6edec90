"""The parts in which the gradients of one `apply` are watched.

What looks at a gradient keeps it in memory until it has looked, and what reads a weight holds up its update.
With one branch for all gradients both would last until the end of the backward pass, in every step: a step of
a transformer took several percent longer. In parts, an update waits for its neighbours only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainvitals.wire import IntArray

PART_ELEMENTS = 1 << 16  # 256 KiB of float32: smaller gradients share a part


def parts_of(sizes: Sequence[int]) -> list[slice]:
    """Cut variables of these numbers of elements into parts, in the order in which their gradients come.

    That is from the last variable to the first: the last part begins with variable 0 and is complete when
    all gradients are.
    """
    parts, stop, held = [], len(sizes), 0
    for place in range(len(sizes) - 1, -1, -1):
        held += sizes[place]
        if held >= PART_ELEMENTS or place == 0:
            parts.append(slice(place, stop))
            stop, held = place, 0
    return parts


def elements_of(variable: Any) -> int:  # noqa: ANN401 - any framework's
    """Return how many elements a variable has; a dimension that is not known counts as one."""
    return int(np.prod([size or 1 for size in variable.shape]))


def elements_of_all(variables: Sequence[Any]) -> IntArray:
    """Return the same of each."""
    return np.array([elements_of(variable) for variable in variables], dtype=np.int64)
