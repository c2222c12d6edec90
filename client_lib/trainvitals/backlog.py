"""Backlog: the frames of one session that the server has not acknowledged, in order, in memory and on disk.

Pure apart from the spool it is given: no clock, no thread, no socket. Every seq that was ever given out is
here, acknowledged, or covered by a `Gap`, whatever happens. When memory and spool are both full the oldest
frame that was not sent yet goes (never a layout: later rows need it), because the present of a run is worth
more than its past.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from trainvitals import wire

MEMORY_BYTES = 16 << 20  # about an hour of a small model's steps, or a minute of a large one's
_FRAME_OVERHEAD = 300  # bytes that Python spends on a frame beside its payload
_MAX_LAYOUTS = 64  # kept for a server that lost its data; layers rarely change


@dataclass(frozen=True, slots=True)
class Frame:
    """The bytes of one frame that carries a seq, and what its loss would mean."""

    seq: int
    last_seq: int
    payload: bytes
    made_at: float = 0.0
    kind: str = "steps"
    first_step: int | None = None
    last_step: int | None = None
    steps: int = 0


def frame_of(message: wire.Sequenced, made_at: float = 0.0) -> Frame:
    """Return `message` encoded."""
    payload = wire.encode(message)
    if isinstance(message, wire.Gap):
        return Frame(
            message.seq, message.last_seq, payload, made_at, "gap",
            message.first_step, message.last_step, message.steps_lost,
        )  # fmt: skip
    if isinstance(message, wire.Steps):
        last = message.first_step + message.count - 1
        if message.steps is not None:
            last = int(message.step_numbers()[-1])
        return Frame(
            message.seq, message.seq, payload, made_at, "steps", message.first_step, last, message.count
        )
    return Frame(message.seq, message.seq, payload, made_at, type(message).__name__.lower())


def frame_from(payload: bytes) -> Frame:
    """Return the frame that `payload` is; one that this version cannot read keeps its bytes.

    Raises:
        wire.WireError: if it carries no seq.
    """
    message = wire.decode_client(payload)
    if isinstance(message, wire.Hello | wire.Heartbeat):
        raise wire.MalformedFrame(f"a {type(message).__name__} has no seq")
    return frame_of(message)


class Shelf(Protocol):
    """Where frames are kept beyond memory: `spool.Spool`, or `NoShelf`."""

    @property
    def first_seq(self) -> int | None:
        """The lowest seq that is kept, or None."""

    @property
    def last_seq(self) -> int:
        """The highest seq that was ever kept; 0 at first."""

    def append(self, frames: list[Frame]) -> int:
        """Keep frames in order; return how many could be."""

    def read(self, seq: int) -> list[Frame]:
        """Return kept frames in order, the one that covers `seq` among them; empty when there is none."""

    def discard(self, acked_seq: int) -> None:
        """Forget what is acknowledged."""


class NoShelf:
    """No disk: what memory cannot hold is lost, and declared."""

    first_seq: int | None = None
    last_seq = 0

    def append(self, frames: list[Frame]) -> int:
        """Keep nothing."""
        return 0

    def read(self, seq: int) -> list[Frame]:
        """Find nothing."""
        return []

    def discard(self, acked_seq: int) -> None:
        """Forget nothing."""


class Backlog:
    """Gives out seq numbers and keeps every frame until it is acknowledged."""

    def __init__(
        self,
        shelf: Shelf,
        *,
        max_bytes: int = MEMORY_BYTES,
        last_seq: int = 0,
        layouts: dict[int, bytes] | None = None,
    ) -> None:
        self.acked_seq = 0
        self.last_seq = last_seq
        self.dropped: Counter[str] = Counter()
        self._shelf = shelf
        self._max_bytes = max_bytes
        self._frames: OrderedDict[int, Frame] = OrderedDict()  # a suffix of all frames, without holes
        self._bytes = 0
        self._drop_from = 1
        self._gap_seq = 0
        self._layouts = dict(layouts or {})
        self._instead: dict[int, Frame] = {}  # what stands in the place of a rejected frame on the shelf
        self._loaded: dict[int, Frame] = {}  # the stretch of the shelf that is being sent

    @property
    def is_empty(self) -> bool:
        """Return whether every frame is acknowledged."""
        return self.acked_seq >= self.last_seq

    def append(self, make: Callable[[int], wire.Sequenced], now: float) -> Frame:
        """Keep the message that `make` returns for the next seq.

        Raises:
            ValueError: whatever `make` raises; no seq is used up then.
        """
        message = make(self.last_seq + 1)
        frame = frame_of(message, now)
        if len(frame.payload) > wire.MAX_FRAME_BYTES:
            raise wire.OversizedFrame(f"a {frame.kind} frame of {len(frame.payload)} bytes")
        self.last_seq = frame.last_seq
        self._put(frame)
        if frame.kind == "layout" and len(self._layouts) < _MAX_LAYOUTS:
            self._layouts[frame.seq] = frame.payload
        return frame

    def frames_from(self, seq: int) -> Iterator[Frame]:
        """Yield the unacknowledged frames from `seq` on; a frame that is nowhere any more is a `Gap`."""
        seq = max(seq, self.acked_seq + 1)
        while seq <= self.last_seq:
            frame = self._at(seq)
            yield frame
            seq = frame.last_seq + 1

    def ack(self, seq: int) -> None:
        """Forget everything up to `seq`."""
        seq = min(seq, self.last_seq)
        if seq <= self.acked_seq:
            return
        self.acked_seq = seq
        while self._frames:
            first = next(iter(self._frames.values()))
            if first.seq > seq:
                break
            self._take(first.seq)
            if first.last_seq > seq:  # a gap that the server has in part
                self._put(_trimmed(first, seq + 1), at_front=True)
                break
        for held in (self._instead, self._loaded):
            for key in [key for key, frame in held.items() if frame.last_seq <= seq]:
                del held[key]
        self._shelf.discard(seq)

    def rewind(self, expected_seq: int) -> None:
        """Take the server's word that it has nothing from `expected_seq` on, although it acknowledged it."""
        if 1 <= expected_seq <= self.acked_seq:
            self.acked_seq = expected_seq - 1

    def reject(self, seq: int, reason: str) -> bool:
        """Put a `Gap` in the place of the frame `seq`; return False when there is nothing to replace."""
        if not self.acked_seq < seq <= self.last_seq:
            return False
        frame = self._at(seq)
        if frame.kind == "gap":
            return False
        self._layouts.pop(seq, None)
        self.dropped[reason] += max(frame.steps, 1)
        self._replace(_gap(frame, reason))
        return True

    def amend(self, seq: int, change: Callable[[wire.Steps], wire.Steps | None]) -> bool:
        """Put what `change` makes of it in the place of the rows `seq`; return False when that is nothing."""
        if not self.acked_seq < seq <= self.last_seq:
            return False
        frame = self._at(seq)
        message = wire.decode_client(frame.payload)
        changed = change(message) if isinstance(message, wire.Steps) else None
        if changed is None:
            return False
        self._replace(replace(frame_of(changed), made_at=frame.made_at))
        return True

    def persist(self, made_before: float) -> bool:
        """Write the unacknowledged frames made until then to the shelf; return False if it took only some."""
        seq = self._unkept_seq()
        frames = []
        while (frame := self._frames.get(seq)) is not None and frame.made_at <= made_before:
            frames.append(frame)
            seq = frame.last_seq + 1
        return not frames or self._shelf.append(frames) == len(frames)

    def unkept_since(self) -> float:
        """Return when the oldest frame that is only in memory was made; infinity when there is none."""
        frame = self._frames.get(self._unkept_seq())
        return float("inf") if frame is None else frame.made_at

    def unkept_steps(self) -> int:
        """Return how many rows are only in memory."""
        first = self._unkept_seq()
        return sum(
            frame.steps for seq, frame in self._frames.items() if seq >= first and frame.kind == "steps"
        )

    def _unkept_seq(self) -> int:
        return max(self._shelf.last_seq, self.acked_seq, next(iter(self._frames), 1) - 1) + 1

    def trim(self, sent_seq: int) -> None:
        """Bring memory below its bound: what is on the shelf goes first, then the oldest unsent frames."""
        while self._bytes > self._max_bytes and self._frames:
            first = next(iter(self._frames.values()))
            if first.last_seq <= self._shelf.last_seq:
                self._take(first.seq)
            elif not self._drop_oldest(sent_seq):
                return

    def _drop_oldest(self, sent_seq: int) -> bool:
        first_seq = next(iter(self._frames))
        seq = max(self._drop_from, sent_seq + 1, self._shelf.last_seq + 1, first_seq)
        while (frame := self._frames.get(seq)) is not None and frame.kind not in ("steps", "event"):
            seq = frame.last_seq + 1
        if frame is None:
            return False
        self._drop_from = frame.last_seq + 1
        self.dropped["spool_full"] += max(frame.steps, 1)
        before = self._gap_before(frame, max(sent_seq, self._shelf.last_seq))
        if before is None:
            self._swap(_gap(frame, "spool_full"))
        else:
            self._take(frame.seq)
            self._swap(_merged(before, frame))
        return True

    def _gap_before(self, frame: Frame, settled_seq: int) -> Frame | None:
        """Return the gap that ends right before `frame` and may still grow: neither sent nor on disk."""
        gap = self._frames.get(self._gap_seq) if self._gap_seq > settled_seq else None
        if gap is not None and gap.kind == "gap" and gap.last_seq + 1 == frame.seq:
            return gap
        self._gap_seq = frame.seq
        return None

    def _at(self, seq: int) -> Frame:
        if (frame := self._find(seq)) is not None:
            return frame
        self._loaded = {frame.seq: frame for frame in self._shelf.read(seq)}
        if (frame := self._find(seq)) is not None:
            return frame
        if (layout := self._layouts.get(seq)) is not None:
            return Frame(seq, seq, layout, 0.0, "layout")
        after = [key - 1 for key in (*self._layouts, *self._loaded, *self._frames) if key > seq]
        if self._shelf.first_seq is not None and self._shelf.first_seq > seq:
            after.append(self._shelf.first_seq - 1)
        last = min(after, default=self.last_seq)
        return frame_of(wire.Gap(seq=seq, last_seq=last, reason="not_kept"))

    def _find(self, seq: int) -> Frame | None:
        for held in (self._instead, self._frames, self._loaded):
            if (frame := held.get(seq)) is not None:
                return frame
        covering = (frame for frame in self._loaded.values() if frame.seq < seq <= frame.last_seq)
        return next((_trimmed(frame, seq) for frame in covering), None)

    def _put(self, frame: Frame, *, at_front: bool = False) -> None:
        self._frames[frame.seq] = frame
        if at_front:
            self._frames.move_to_end(frame.seq, last=False)
        self._bytes += len(frame.payload) + _FRAME_OVERHEAD

    def _take(self, seq: int) -> None:
        self._bytes -= len(self._frames.pop(seq).payload) + _FRAME_OVERHEAD

    def _replace(self, frame: Frame) -> None:
        if frame.seq in self._frames:
            self._swap(frame)
        if frame.seq <= self._shelf.last_seq:
            self._instead[frame.seq] = frame

    def _swap(self, frame: Frame) -> None:
        self._bytes += len(frame.payload) - len(self._frames[frame.seq].payload)
        self._frames[frame.seq] = frame


def _gap(frame: Frame, reason: str) -> Frame:
    gap = wire.Gap(
        seq=frame.seq,
        last_seq=frame.last_seq,
        reason=reason,
        first_step=frame.first_step,
        last_step=frame.last_step,
        steps_lost=frame.steps,
    )
    return replace(frame_of(gap), made_at=frame.made_at)


def _merged(gap: Frame, frame: Frame) -> Frame:
    both = [gap, frame]
    firsts = [one.first_step for one in both if one.first_step is not None]
    lasts = [one.last_step for one in both if one.last_step is not None]
    union = replace(
        gap,
        last_seq=frame.last_seq,
        first_step=min(firsts, default=None),
        last_step=max(lasts, default=None),
        steps=gap.steps + frame.steps,
    )
    return _gap(union, "spool_full")


def _trimmed(gap: Frame, first_seq: int) -> Frame:
    """Return the rest of a gap; how many of its rows lie in the rest is not known, so the count stays."""
    message = wire.decode_client(gap.payload)
    assert isinstance(message, wire.Gap)
    return replace(_gap(replace(gap, seq=first_seq), message.reason), made_at=gap.made_at)
