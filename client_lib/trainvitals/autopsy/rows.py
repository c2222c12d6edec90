"""Rows: where along its first axis a tensor is bad, and which samples of the batch that may mean."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trainvitals.autopsy.numbers import Array, bad_elements

MAX_ROWS = 1 << 20  # a longer first axis is not that of a batch
MAX_OUTCOME = 400  # later operations that are asked which samples they saw


@dataclass(frozen=True, slots=True)
class Rows:
    """The bad places along a first axis, packed eight to a byte."""

    length: int
    packed: bytes

    def samples(self, size: int) -> frozenset[int]:
        """Return the samples they belong to; none where the first axis is not that of a batch of `size`.

        An axis of several rows a sample (of time steps, of heads) holds the rows of a sample together.
        """
        if size <= 0 or self.length % size:
            return frozenset()
        bits = np.unpackbits(np.frombuffer(self.packed, np.uint8), count=self.length)
        return frozenset((np.flatnonzero(bits) // (self.length // size)).tolist())


def bad_rows(array: Array) -> Rows | None:
    """Return the bad rows of an array; None for a single number."""
    if array.ndim == 0 or not 0 < len(array) <= MAX_ROWS:
        return None
    bad = bad_elements(array).reshape(len(array), -1).any(axis=1)
    return Rows(len(array), np.packbits(bad).tobytes())


def likely_samples(outcome: Iterable[Rows | None], size: int) -> list[tuple[int, ...]]:
    """Return groups of samples, the likeliest first, from the rows of an origin and of what it spoilt.

    A mask of -Infinity is bad in many samples and does harm in one: those count that stay bad on the way.
    """
    seen = [rows.samples(size) for rows in outcome if rows is not None][:MAX_OUTCOME]
    seen = [samples for samples in seen if samples]
    if not seen:
        return []
    narrow = seen[0]
    for samples in seen[1:]:
        narrow = narrow & samples or narrow
    groups = dict.fromkeys((narrow, seen[0]))
    return [tuple(sorted(group)) for group in groups]
