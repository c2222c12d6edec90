"""Rows: where along its first axis a tensor is bad, and which samples of the batch that may mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trainvitals.autopsy.numbers import Array, bad_elements

MAX_ROWS = 1 << 20  # a longer first axis is not that of a batch
MAX_OUTCOME = 20_000  # operations that are asked which samples they saw


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


@dataclass(frozen=True, slots=True)
class Spoilt:
    """One operation that an origin spoilt, or the origin itself: which others spoilt it, and its bad rows."""

    number: int
    causes: tuple[int, ...]
    rows: Rows | None


def likely_samples(outcome: Sequence[Spoilt], ends: Iterable[int], size: int) -> list[tuple[int, ...]]:
    """Return groups of samples, the likeliest first, from the rows of an origin and of what it spoilt.

    A mask of -Infinity is bad in many samples and does harm in one: those count that stay bad up to one of
    the `ends`, by any of the ways that lead there. `outcome` is in the order of running, the origin first.
    """
    seen = outcome[:1] if len(outcome) > MAX_OUTCOME else outcome
    harmed: dict[int, frozenset[int]] = {}
    for spoilt in seen:
        own = frozenset() if spoilt.rows is None else spoilt.rows.samples(size)
        before = frozenset().union(*(harmed.get(cause, frozenset()) for cause in spoilt.causes))
        # Rows that are those of no such sample are not rows of the batch.
        harmed[spoilt.number] = own if spoilt is seen[0] else (own & before or before)
    first = harmed[seen[0].number]
    last = frozenset().union(*(harmed.get(end, frozenset()) for end in ends))
    return [tuple(sorted(group)) for group in dict.fromkeys((last or first, first)) if group]
