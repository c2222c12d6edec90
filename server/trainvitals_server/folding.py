"""Folding: one run's fold, how far it is in each session, and what it has said that is not saved yet.

Pure: takes stored frames and keeps values. The detector thread owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Protocol

import msgspec

from trainvitals import wire
from trainvitals_server.batch import Batch, from_frame
from trainvitals_server.incident import Incident
from trainvitals_server.joined import join
from trainvitals_server.store.streams import Progress, StoredFrame, stream_name

MAX_JOINED_ROWS = wire.MAX_ROWS  # folded at once: what one frame may bring

_steps_decoder = msgspec.msgpack.Decoder(wire.Steps)  # ingest has checked what is stored


class Fold(Protocol):
    """What `trainvitals_server.fold.RunFold` is to the pipeline."""

    def hello(self, hello: wire.Hello) -> None:
        """Open a session."""

    def layout(self, rank: int, session_id: str, layout: wire.Layout) -> None:
        """Note the layers of a session."""

    def rows(self, rank: int, session_id: str, batch: Batch) -> list[Incident]:
        """Fold rows and return the incidents that are new or changed."""

    def event(self, rank: int, session_id: str, event: wire.Event) -> list[Incident]:
        """Fold an event and return the incidents that are new or changed."""

    def bye(self, rank: int, session_id: str, bye: wire.Bye) -> list[Incident]:
        """Close a session and return the incidents that are new or changed."""

    def dump(self) -> bytes:
        """Return the state."""


class Folding:
    """The fold of one run. After `take`, the caller saves `pending` with `fold.dump()` and calls `saved`."""

    def __init__(self, run_id: str, fold: Fold, progress: Progress) -> None:
        self.run_id = run_id
        self.fold = fold
        self.is_joining = True  # folds the rows of neighbouring frames as one batch, which is much cheaper
        self.is_torn = (
            False  # it failed amid joined rows, of which some detectors may have seen more than others
        )
        self.progress = progress
        self.pending: dict[str, Incident] = {}  # the latest revision of each incident that is not saved
        self.unsaved_frames = 0
        self.saved_at = 0.0
        self._has_ended = False
        self._layouts: dict[tuple[int, str, int], tuple[wire.Layer, ...]] = {}

    @classmethod
    def resume(
        cls,
        run_id: str,
        saved: tuple[bytes, Progress] | None,
        opening: Iterable[StoredFrame],
        new: Callable[[str], Fold],
        load: Callable[[bytes], Fold],
    ) -> Folding:
        """Go on from a saved state; where there is none, or it is of another version, begin afresh.

        `opening` are the Hellos and layouts of the run. A state that cannot be read means that only rows
        which nobody has folded are judged: those before may be compacted already.
        """
        if saved is None:
            return cls(run_id, new(run_id), {})
        state, progress = saved
        seen = [frame for frame in opening if frame.seq <= progress.get(stream_name(*frame[:2]), -1)]
        try:
            folding, is_known = cls(run_id, load(state), progress), True
        except (ValueError, msgspec.DecodeError):
            folding, is_known = cls(run_id, new(run_id), progress), False
        for frame in seen:
            folding._open(frame, tell_fold=not is_known)
        return folding

    @property
    def must_save(self) -> bool:
        """Whether something was said that people wait for."""
        return bool(self.pending) or (self._has_ended and self.unsaved_frames > 0)

    def take(self, frames: Iterable[StoredFrame]) -> None:
        """Fold `frames`. What makes the fold fail is behind us when the exception comes out.

        Where it was joining (`is_torn`), the caller begins again from the saved state, without joining, so
        that only the frame that is to blame is passed over.
        """
        for (_, _, is_rows), group in groupby(frames, key=lambda one: (*one[:2], one.kind == "steps")):
            if is_rows:
                self._fold_rows(list(group))
                continue
            for frame in group:
                self._pass([frame])
                self._tell(self._fold(frame))

    def saved(self, now: float) -> None:
        """Note that everything up to here is committed."""
        self.pending.clear()
        self.unsaved_frames, self.saved_at, self._has_ended = 0, now, False

    def _pass(self, frames: list[StoredFrame]) -> None:
        self.progress[stream_name(frames[-1].rank, frames[-1].session_id)] = frames[-1].seq
        self.unsaved_frames += len(frames)

    def _tell(self, incidents: Iterable[Incident]) -> None:
        for incident in incidents:
            self.pending[incident.id] = incident

    def _fold_rows(self, frames: list[StoredFrame]) -> None:
        """Fold frames of rows of one session."""
        if not self.is_joining:
            for frame in frames:
                self._pass([frame])
                self._tell(self.fold.rows(frame.rank, frame.session_id, self._read(frame)))
            return
        self.is_torn = True
        for pieces in _alike((frame, self._read(frame)) for frame in frames):
            self._pass([frame for frame, _ in pieces])
            joined = join([batch for _, batch in pieces])
            self._tell(self.fold.rows(frames[0].rank, frames[0].session_id, joined))
        self.is_torn = False

    def _read(self, frame: StoredFrame) -> Batch:
        message = _steps_decoder.decode(frame.payload)
        layers = self._layouts.get((frame.rank, frame.session_id, message.layout_id), ())
        return from_frame(message, layers)

    def _fold(self, frame: StoredFrame) -> list[Incident]:
        if frame.kind in ("hello", "layout"):
            self._open(frame, tell_fold=True)
            return []
        message = wire.decode_client(frame.payload)
        rank, session_id = frame.rank, frame.session_id
        if isinstance(message, wire.Event):
            return self.fold.event(rank, session_id, message)
        if isinstance(message, wire.Bye):
            self._has_ended = True
            return self.fold.bye(rank, session_id, message)
        return []

    def _open(self, frame: StoredFrame, *, tell_fold: bool) -> None:
        message = wire.decode_client(frame.payload)
        if isinstance(message, wire.Layout):
            key = (frame.rank, frame.session_id, message.layout_id)
            self._layouts[key] = tuple(message.layers)
            if tell_fold:
                self.fold.layout(frame.rank, frame.session_id, message)
        elif isinstance(message, wire.Hello) and tell_fold:
            self.fold.hello(message)


def _alike(
    pairs: Iterable[tuple[StoredFrame, Batch]],
) -> Iterator[list[tuple[StoredFrame, Batch]]]:
    """Yield neighbours of the same columns, so that joining them invents no missing cell."""
    group: list[tuple[StoredFrame, Batch]] = []
    rows = 0
    for pair in pairs:
        batch = pair[1]
        rows += len(batch)
        if group and (rows > MAX_JOINED_ROWS or not _is_alike(group[-1][1], batch)):
            yield group
            group, rows = [], len(batch)
        group.append(pair)
    if group:
        yield group


def _is_alike(one: Batch, other: Batch) -> bool:
    same = one.columns.keys() == other.columns.keys()
    same = same and one.layer_columns.keys() == other.layer_columns.keys() and one.layers == other.layers
    return same and one.steps[-1] < other.steps[0]
