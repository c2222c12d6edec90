"""The one codec for JSON that leaves the server: NaN, the infinities and missing stay four different things.

A single non-finite number becomes the string "NaN", "Infinity" or "-Infinity". A numeric column becomes
`{"dtype", "bdata"}` (base64, little endian), the form that plotly.js reads by itself, plus `"mask"` (base64
bits, little bit order, 1 = present) when cells are missing: those hold NaN in `bdata`, and only the mask
says that they are missing.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from trainvitals.wire import BoolArray

JsonColumn = dict[str, str]
_DTYPES = {"f8": "<f8", "f4": "<f4", "i4": "<i4", "u1": "u1"}


def encode_column(
    values: npt.ArrayLike, present: npt.ArrayLike | None = None, dtype: str = "f8"
) -> JsonColumn:
    """Return the JSON form of a column; `dtype` is f8, f4, i4 or u1.

    An int64 travels as f8: exact up to 2**53.
    """
    cells = np.array(values, dtype=_DTYPES[dtype])
    if present is None or np.all(present):
        return {"dtype": dtype, "bdata": _text(cells.tobytes())}
    flags = np.asarray(present, dtype=bool)
    cells[~flags] = math.nan if dtype.startswith("f") else 0
    return {
        "dtype": dtype,
        "bdata": _text(cells.tobytes()),
        "mask": _text(np.packbits(flags, bitorder="little")),
    }


def decode_column(column: Mapping[str, str]) -> tuple[npt.NDArray[Any], BoolArray]:
    """Return (values, present) of a JSON column."""
    values = np.frombuffer(base64.b64decode(column["bdata"]), dtype=_DTYPES[column["dtype"]])
    if "mask" not in column:
        return values, np.ones(len(values), dtype=bool)
    packed = np.frombuffer(base64.b64decode(column["mask"]), dtype=np.uint8)
    return values, np.unpackbits(packed, count=len(values), bitorder="little").astype(bool)


def dumps(value: object) -> bytes:
    """Return `value` (builtins, msgspec structs, numpy scalars) as JSON that every `JSON.parse` takes."""
    return msgspec.json.encode(_spell(msgspec.to_builtins(value, enc_hook=_builtin)))


def _builtin(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"no JSON for {type(value).__name__}")


def _spell(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else spell_number(value)
    if isinstance(value, dict):
        return {key: _spell(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_spell(item) for item in value]
    return value


def spell_number(value: float) -> str:
    """Return how a non-finite number is written, in JSON strings and in CSV alike."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _text(data: bytes | npt.NDArray[np.uint8]) -> str:
    return base64.b64encode(data if isinstance(data, bytes) else data.tobytes()).decode("ascii")
