"""TFRecord: the framing of TensorBoard's event files; every record carries checksums of its own."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from trainvitals_server.readers.row import CutOff, UnreadableLog
from trainvitals_server.readers.source import Source

MAX_RECORD_BYTES = 1 << 20  # scalars take some hundred bytes; images and graphs beyond this are passed over
_LENGTH = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_MASK = 0xA282EAD8
_CHUNK = 1 << 20


def _table() -> tuple[int, ...]:
    entries = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (_POLYNOMIAL if entry & 1 else 0)
        entries.append(entry)
    return tuple(entries)


_TABLE = _table()


def masked_crc32c(data: bytes) -> int:
    """Return the checksum as TFRecord stores it: rotated and shifted, so that it may itself be checked."""
    table, crc = _TABLE, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def read_records(source: Source) -> Iterator[tuple[int, bytes]]:
    """Yield (number, bytes) of the records that are small enough to hold scalars.

    Raises:
        CutOff: where the file ends in the middle of a record.
        UnreadableLog: where a checksum does not fit.
    """
    path, stream, number = source.path, source.stream, 0
    while head := stream.read(_LENGTH.size):
        place = f"record {number}"
        _whole(path, head, _LENGTH.size, place)
        length, checksum = _LENGTH.unpack(head)
        if masked_crc32c(head[:8]) != checksum:
            raise UnreadableLog(path, "the checksum of its length is wrong: no event file, or broken", place)
        if length > MAX_RECORD_BYTES:
            _skip(path, stream, length + _CHECKSUM.size, place)
        else:
            body = stream.read(length + _CHECKSUM.size)
            _whole(path, body, length + _CHECKSUM.size, place)
            if masked_crc32c(body[:length]) != _CHECKSUM.unpack(body[length:])[0]:
                raise UnreadableLog(path, "the checksum of its content is wrong", place)
            yield number, body[:length]
        number += 1


def _whole(path: Path, data: bytes, length: int, place: str) -> None:
    if len(data) < length:
        raise CutOff(path, "the file ends in the middle of a record", place)


def _skip(path: Path, stream: IO[bytes], length: int, place: str) -> None:
    while length:
        data = stream.read(min(length, _CHUNK))
        if not data:
            raise CutOff(path, "the file ends in the middle of a record", place)
        length -= len(data)
