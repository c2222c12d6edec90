"""Rows: measured steps on their way from a probe to the sender, and the `Steps` frames made of them.

Values only. Dtypes are kept: a float64 stays a float64, a count stays an integer, a missing cell is a flag.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trainvitals import wire
from trainvitals.wire import BoolArray, Dtype, FloatArray, IntArray

Cells = tuple[npt.NDArray[Any], BoolArray | None]

FRAME_BYTES = 128 * 1024  # small frames keep a slow socket from being blocked for long
_DTYPES: dict[str, Dtype] = {
    "float64": "f8", "float32": "f4", "int64": "i8", "int32": "i4", "uint8": "u1", "bool": "u1",
    "float16": "f4", "bfloat16": "f4", "int16": "i4", "int8": "i4", "uint16": "i4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in increasing order of step.

    A column is (values, present); present None means that every cell is there. Layer columns are
    `[rows, layers]` of the layout `layout_id`.
    """

    steps: IntArray
    times: FloatArray
    columns: Mapping[str, Cells] = field(default_factory=dict)
    layer_columns: Mapping[str, Cells] = field(default_factory=dict)
    layout_id: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    def slice(self, start: int, stop: int) -> Rows:
        """Return the rows start .. stop - 1."""
        return Rows(
            self.steps[start:stop],
            self.times[start:stop],
            {name: _slice(cells, start, stop) for name, cells in self.columns.items()},
            {name: _slice(cells, start, stop) for name, cells in self.layer_columns.items()},
            self.layout_id,
        )

    @property
    def nbytes(self) -> int:
        """Return about how much memory the rows take, and how long their frame will be."""
        cells = [*self.columns.values(), *self.layer_columns.values()]
        return 16 * len(self.steps) + sum(values.nbytes for values, _ in cells)

    @property
    def is_finite(self) -> bool:
        """Return False when a present cell of a plain column is NaN or infinite."""
        for values, present in self.columns.values():
            if (
                values.dtype.kind == "f"
                and not np.isfinite(values if present is None else values[present]).all()
            ):
                return False
        return True


def _slice(cells: Cells, start: int, stop: int) -> Cells:
    values, present = cells
    return values[start:stop], None if present is None else present[start:stop]
