"""Layer past: the layers' typical gradient norms in the latest blocks, small enough to be saved often.

Kept to three digits (bfloat16: the upper half of a float32): what is compared by factors of a hundred and
more needs no others, and a state with hundreds of layers is a quarter of the size. Finds nothing by itself.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from trainvitals.wire import FloatArray
from trainvitals_server.detect.layer_rows import column_medians

LARGEST = 3.3895e38  # the largest bfloat16; what is beyond must not become infinite
HALF_UNIT = 0x8000  # rounds to the nearest


class LayerPast(msgspec.Struct):
    """One row a block, the newest last; NaN where nothing was known of a layer."""

    size: int
    rows: list[bytes] = []

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, norms: FloatArray) -> None:
        """Take the norms of one block; the oldest one goes."""
        self.rows = [*self.rows[1 - self.size :], pack(norms)]

    def forget(self) -> None:
        """Begin afresh: the layers are others."""
        self.rows = []

    def latest(self) -> FloatArray:
        """Return the norms of the newest block."""
        return unpack(self.rows[-1])

    def largest(self, layer: int) -> float:
        """Return the largest norm that is known of a layer; 0 where none is."""
        cells = unpack(b"".join(row[2 * layer : 2 * layer + 2] for row in self.rows))
        return max((cell for cell in cells.tolist() if cell > 0), default=0.0)

    def typical(self, least_rows: int = 1) -> FloatArray:
        """Return each layer's median of its norms above 0; NaN where there are fewer than `least_rows`."""
        table = unpack(b"".join(self.rows)).reshape(len(self.rows), -1)
        known = np.where(table > 0, table, np.nan)
        enough = np.count_nonzero(table > 0, axis=0) >= least_rows
        return np.where(enough, column_medians(known), np.nan)


def pack(norms: FloatArray) -> bytes:
    """Return norms as bfloat16, two bytes each."""
    halves = np.minimum(norms, LARGEST).astype("<f4").view("<u4")
    rounded = np.where(np.isnan(norms), halves, halves + np.uint32(HALF_UNIT))
    return (rounded >> 16).astype("<u2").tobytes()


def unpack(data: bytes) -> FloatArray:
    """Return what `pack` took, to three digits."""
    halves: npt.NDArray[np.uint32] = np.frombuffer(data, dtype="<u2").astype("<u4")
    halves <<= np.uint32(16)
    return halves.view("<f4").astype(np.float64)
