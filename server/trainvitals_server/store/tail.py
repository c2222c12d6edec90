"""Tail: the `Steps` frames of a session that are not compacted yet."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import msgspec
import numpy as np

from trainvitals.wire import BoolArray, Column, IntArray, MalformedFrame
from trainvitals_server.series import Points, concat_points
from trainvitals_server.store.runs import StreamKey

TIME = "time"  # the series of the host's clock, which every row has
NO_LAYOUT = 0  # the layout of a series without layers


class _Frame(msgspec.Struct, frozen=True, tag_field="t", tag="steps"):
    """`wire.Steps`, whose columns stay undecoded until somebody asks for one."""

    seq: int
    first_step: int
    count: int
    layout_id: int = 0
    steps: bytes | None = None
    times: Column | None = None
    columns: dict[str, msgspec.Raw] = {}
    layer_columns: dict[str, msgspec.Raw] = {}


_decoder = msgspec.msgpack.Decoder(_Frame)
_column_decoder = msgspec.msgpack.Decoder(Column)


@dataclass(frozen=True, slots=True)
class TailFrame:
    """One frame's rows."""

    steps: IntArray
    frame: _Frame

    @property
    def names(self) -> list[str]:
        """Names of the series without layers, the clock among them."""
        return [TIME, *(name for name in self.frame.columns if name != TIME)]

    def points(self, name: str) -> Points | None:
        """Return the rows of a series without layers, or None where the frame does not have it."""
        if name == TIME:
            return self._times()
        if name not in self.frame.columns:
            return None
        values, present = _column_decoder.decode(self.frame.columns[name]).unpack(len(self.steps))
        return Points(self.steps, values, present)

    def layer_points(self, name: str, layers: int) -> Points | None:
        """Return the rows of a layer series of `layers` layers, or None where the frame does not have it."""
        if name not in self.frame.layer_columns:
            return None
        shape = (len(self.steps), layers)
        column = _column_decoder.decode(self.frame.layer_columns[name])
        values, present = column.unpack(len(self.steps) * layers)
        return Points(self.steps, values.reshape(shape), present.reshape(shape))

    def _times(self) -> Points:
        if self.frame.times is None:
            nothing: BoolArray = np.zeros(len(self.steps), dtype=bool)
            return Points(self.steps, np.zeros(len(self.steps)), nothing)
        return Points(self.steps, *self.frame.times.unpack(len(self.steps)))


def decode_frame(payload: bytes) -> TailFrame:
    """Return the rows of a stored `Steps` frame."""
    frame = _decoder.decode(payload)
    if frame.steps is None:
        steps = np.arange(frame.first_step, frame.first_step + frame.count, dtype=np.int64)
    else:
        steps = np.frombuffer(frame.steps, dtype="<i8").astype(np.int64)
    return TailFrame(steps, frame)


@dataclass(frozen=True, slots=True)
class Tail:
    """The frames of one session that are not compacted, in order of seq."""

    frames: tuple[TailFrame, ...]

    @property
    def first_step(self) -> int | None:
        """The lowest step among them, or None where there is no frame."""
        return min((int(frame.steps[0]) for frame in self.frames), default=None)

    @property
    def last_step(self) -> int | None:
        """The highest step among them, or None where there is no frame."""
        return max((int(frame.steps[-1]) for frame in self.frames), default=None)

    def points(self, name: str, layout_id: int, layers: int) -> Points | None:
        """Return the rows of one series, or None where no frame has it; a later frame's row wins."""
        if layout_id == NO_LAYOUT:
            found = [frame.points(name) for frame in self.frames]
        else:
            frames = (frame for frame in self.frames if frame.frame.layout_id == layout_id)
            found = [_layer_points(frame, name, layers) for frame in frames]
        parts = [part for part in found if part is not None]
        return concat_points(parts) if parts else None


def _layer_points(frame: TailFrame, name: str, layers: int) -> Points | None:
    try:
        return frame.layer_points(name, layers)
    except MalformedFrame:  # it fits no layout: nobody can ever say which layer is which
        return None


def load_tail(connection: sqlite3.Connection, key: StreamKey, limit: int = -1) -> Tail:
    """Return the uncompacted frames of a session; with a `limit`, the latest so many."""
    rows = connection.execute(
        "SELECT payload FROM frame WHERE run_id = ? AND rank = ? AND session_id = ? AND kind = 'steps'"
        " ORDER BY seq DESC LIMIT ?",
        (*key, limit),
    ).fetchall()
    return Tail(tuple(decode_frame(payload) for (payload,) in reversed(rows)))
