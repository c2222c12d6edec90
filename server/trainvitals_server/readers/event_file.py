"""Event file: the scalars that TensorBoard's writers leave. Reads just so much protobuf as that takes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trainvitals_server.readers.row import Row, UnreadableLog
from trainvitals_server.readers.source import Source
from trainvitals_server.readers.tfrecord import read_records

VALIDATION_FOLDERS = frozenset({"validation", "val", "valid", "eval", "evaluation", "test"})
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # what the low three bits of a field's key say
_EVENT_STEP, _EVENT_SUMMARY, _SUMMARY_VALUE = 2, 5, 1
_VALUE_TAG, _VALUE_SIMPLE, _VALUE_TENSOR = 1, 2, 8
_TENSOR_TYPE, _TENSOR_CONTENT, _TENSOR_FLOATS, _TENSOR_DOUBLES = 1, 4, 5, 6
_TENSOR_INTEGERS = (7, 10, 16, 17)  # int_val, int64_val, uint32_val, uint64_val
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 6: "i1", 9: "<i8", 19: "<f2", 22: "<u4", 23: "<u8"}
_HALF, _BFLOAT16, _TENSOR_HALVES = 19, 14, 13

Field = tuple[int, int | bytes]


def read_events(source: Source) -> Iterator[Row]:
    """Yield one row for each scalar; in a folder of validation its tag is told as `val/TAG`."""
    path = source.path
    prefix = "val/" if path.parent.name.lower() in VALIDATION_FOLDERS else ""
    for number, record in read_records(source):
        place = f"record {number}"
        try:
            for step, tag, value in scalars(record):
                yield Row(place, {prefix + tag: value, "step": step})
        except ValueError as error:
            raise UnreadableLog(path, f"no event: {error}", place) from error


def scalars(event: bytes) -> Iterator[tuple[int, str, float]]:
    """Yield (step, tag, value) of the scalars of one encoded Event."""
    step, values = 0, []
    for number, content in _fields(event):
        if number == _EVENT_STEP and isinstance(content, int):
            step = _signed(content)
        elif number == _EVENT_SUMMARY and isinstance(content, bytes):
            values += [value for field, value in _fields(content) if field == _SUMMARY_VALUE]
    for value in values:
        tag, number_of = _value(value) if isinstance(value, bytes) else ("", None)
        if number_of is not None:
            yield step, tag, number_of


def _value(data: bytes) -> tuple[str, float | None]:
    tag, found = "", None
    for number, content in _fields(data):
        if not isinstance(content, bytes):
            continue
        if number == _VALUE_TAG:
            tag = content.decode("utf-8", "replace")
        elif number == _VALUE_SIMPLE:
            found = _only(content, "<f4")
        elif number == _VALUE_TENSOR:
            found = _tensor(content)
    return tag, found


def _tensor(data: bytes) -> float | None:
    """Return the number that a tensor holds; None if it holds more than one, or text."""
    fields = list(_fields(data))
    kind = next((content for number, content in fields if number == _TENSOR_TYPE), 0)
    for number, content in fields:
        if isinstance(content, int):
            if number in _TENSOR_INTEGERS:
                return float(_signed(content))
            if number == _TENSOR_HALVES:
                return _half(content, kind)
        elif number == _TENSOR_CONTENT and kind in _TYPES:
            return _only(content, _TYPES[kind]) if isinstance(kind, int) else None
        elif number == _TENSOR_CONTENT and kind == _BFLOAT16 and len(content) == 2:
            return _half(int.from_bytes(content, "little"), kind)
        elif number in (_TENSOR_FLOATS, _TENSOR_DOUBLES):
            return _only(content, "<f4" if number == _TENSOR_FLOATS else "<f8")
        elif number in (*_TENSOR_INTEGERS, _TENSOR_HALVES):
            integer, end = _varint(content, 0)
            if end != len(content):
                return None
            return _half(integer, kind) if number == _TENSOR_HALVES else float(_signed(integer))
    return None


def _half(bits: int, kind: int | bytes) -> float | None:
    """Return the number that 16 bits stand for; bfloat16 is the upper half of a float32."""
    if not 0 <= bits < 1 << 16:
        raise ValueError("a half of more than 16 bits")
    if kind == _HALF:
        return _only(struct.pack("<H", bits), "<f2")
    return _only(struct.pack("<I", bits << 16), "<f4") if kind == _BFLOAT16 else None


def _only(data: bytes, dtype: npt.DTypeLike) -> float | None:
    return float(np.frombuffer(data, dtype)[0]) if len(data) == np.dtype(dtype).itemsize else None


def _fields(data: bytes) -> Iterator[Field]:
    """Yield (number, content) of the fields of an encoded message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            integer, at = _varint(data, at)
            yield number, integer
            continue
        if wire_type == _BYTES:
            length, at = _varint(data, at)
        elif wire_type in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if wire_type == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"a field of wire type {wire_type}")
        if at + length > len(data):
            raise ValueError("a field beyond its message")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (the integer, where it ends)."""
    value = shift = 0
    while at < len(data) and shift < 70:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value & (1 << 64) - 1, at
    raise ValueError("an integer without an end")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
