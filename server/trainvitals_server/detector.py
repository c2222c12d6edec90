"""Detector: the thread that folds stored frames into incidents.

It reads what is committed, never what is in flight: its state cannot be ahead of the database, and a restart
goes on where the saved state ends. Incidents, their alerts and the state are written in one transaction.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from trainvitals_server.backoff import Backoff
from trainvitals_server.errors import Busy, StorageFailed
from trainvitals_server.folding import Fold, Folding
from trainvitals_server.incident import Incident
from trainvitals_server.store import Store, streams
from trainvitals_server.store.incidents import Change, find_incident, save_incident
from trainvitals_server.store.runs import StreamKey
from trainvitals_server.store.streams import Progress

SAVE_FRAMES = 512  # folded again after a crash, at most
SAVE_AFTER_S = 5.0
TICK_S = 0.25
# Rows of one run are folded no more often, so that those of several frames are folded at once: a fold costs
# the same for 20 rows as for 200. What is no row, and what comes after a pause, is folded at once.
FOLD_EVERY_S = 0.2
LONGEST_BREATH_S = 0.05  # after a long fold: in a storm of frames the event loop needs the interpreter, too
MAX_FOLDS = 128  # runs whose fold stays in memory
CLOSE_TIMEOUT_S = 5.0
LONGEST_PAUSE_S = 30.0  # for a run whose frames cannot be read or whose state cannot be saved
MAX_COMPLAINTS = 100

Changed = list[tuple[Incident, Change]]
EnqueueAlerts = Callable[[sqlite3.Connection, Incident, Change, float], object]

_log = logging.getLogger(__name__)


class Detector:
    """Owns every fold. `wake` from any thread; `on_change` is called in this thread, after the commit."""

    def __init__(
        self,
        database: Store,
        *,
        new_fold: Callable[[str], Fold],
        load_fold: Callable[[bytes], Fold],
        enqueue_alerts: EnqueueAlerts,
        on_change: Callable[[Changed], None],
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._new_fold, self._load_fold = new_fold, load_fold
        self._enqueue_alerts, self._on_change = enqueue_alerts, on_change
        self._clock = clock
        self._folds: OrderedDict[str, Folding] = OrderedDict()
        self._news = threading.Condition()
        self._dirty: dict[str, float] = {}  # runs with unseen frames, in order, and when each is due
        self._folded_at: OrderedDict[str, float] = OrderedDict()
        self._careful: set[str] = set()  # runs of which a frame made the fold fail
        self._deleted: set[str] = set()
        self._is_closing = False
        self._complaints: set[str] = set()
        self._follows = Backoff(TICK_S, LONGEST_PAUSE_S, time.monotonic)
        self._saves = Backoff(TICK_S, LONGEST_PAUSE_S, time.monotonic)
        self._thread = threading.Thread(target=self._run, name="trainvitals-detector", daemon=True)

    def start(self) -> None:
        """Catch up with what is stored, then follow."""
        self._thread.start()

    def wake(self, run_id: str, *, at_once: bool = True) -> None:
        """Say that frames of the run were committed; rows alone need not be folded at once."""
        now = time.monotonic()
        with self._news:
            due = now if at_once else self._folded_at.get(run_id, -FOLD_EVERY_S) + FOLD_EVERY_S
            self._dirty[run_id] = min(due, self._dirty.get(run_id, due))
            if due <= now:
                self._news.notify()  # else the thread looks by itself, within a tick

    def forget(self, run_id: str) -> None:
        """Say that the run was deleted."""
        with self._news:
            self._deleted.add(run_id)
            self._news.notify()

    def close(self) -> None:
        """Save every state and end the thread; what was not folded is when the server starts again."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        self._guarded("recover", self._recover)
        while not self._is_closing:
            run_id = self._next()
            if run_id is not None:
                began = time.thread_time()
                self._try_follow(run_id)
                time.sleep(min(time.thread_time() - began, LONGEST_BREATH_S))
            self._save_due()
        for folding in list(self._folds.values()):
            if folding.unsaved_frames:
                self._guarded(folding.run_id, partial(self._save, folding))

    def _guarded(self, name: str, action: Callable[[], object]) -> bool:
        try:
            action()
        except (Busy, StorageFailed):  # the database says so itself
            return False
        except Exception as error:  # the thread outlives a detector's mistake
            self._complain(f"{name}: {error!r}")
            return False
        return True

    def _complain(self, problem: str) -> None:
        """Log the traceback, but not for every frame that has the same problem."""
        if problem not in self._complaints:
            self._complaints.add(problem)
            _log.exception("detection failed: %s", problem)
        if len(self._complaints) > MAX_COMPLAINTS:
            self._complaints.clear()

    def _recover(self) -> None:
        for run_id in self._database.read(streams.unfolded_runs):
            self.wake(run_id)

    def _next(self) -> str | None:
        with self._news:
            if not self._is_closing and self._due() is None:
                self._news.wait(self._pause())
            for deleted in self._deleted:
                self._forget(deleted)
            self._deleted.clear()
            run_id = self._due()
            if run_id is not None:
                del self._dirty[run_id]
                self._note_fold(run_id)
            return run_id

    def _due(self) -> str | None:
        now = time.monotonic()
        due = (run_id for run_id, at in self._dirty.items() if at <= now)
        return next((run_id for run_id in due if not self._follows.is_resting(run_id)), None)

    def _pause(self) -> float:
        """Return for how long there is nothing to fold; what rests is looked at with each tick."""
        first = min(self._dirty.values(), default=float("inf")) - time.monotonic()
        return min(first, TICK_S) if first > 0 else TICK_S

    def _note_fold(self, run_id: str) -> None:
        self._folded_at[run_id] = time.monotonic()
        self._folded_at.move_to_end(run_id)
        if len(self._folded_at) > MAX_FOLDS:
            self._folded_at.popitem(last=False)

    def _forget(self, run_id: str) -> None:
        self._folds.pop(run_id, None)
        self._careful.discard(run_id)
        self._follows.forget(run_id)
        self._saves.forget(run_id)

    def _try_follow(self, run_id: str) -> None:
        before = self._seen(run_id)
        if self._guarded(run_id, partial(self._follow, run_id)):
            self._follows.forget(run_id)
            return
        folding = self._folds.get(run_id)
        if folding is not None and folding.is_torn and len(self._careful) < MAX_FOLDS:
            self._careful.add(run_id)
            del self._folds[run_id]  # begin again from the saved state, one frame after the other
        if self._seen(run_id) == before:  # else a frame that it could not fold is behind it
            self._follows.failed(run_id)
        self.wake(run_id)

    def _seen(self, run_id: str) -> Progress:
        return dict(self._folds[run_id].progress) if run_id in self._folds else {}

    def _follow(self, run_id: str) -> None:
        folding = self._folding(run_id)
        frames = self._database.read(lambda c: streams.unfolded_frames(c, run_id, folding.progress))
        if len(frames) >= streams.FRAMES_AT_ONCE:
            self.wake(run_id)  # there may be more
        folding.take(frames)

    def _folding(self, run_id: str) -> Folding:
        if run_id not in self._folds:
            saved = self._database.read(lambda c: streams.load_fold(c, run_id))
            opening = self._database.read(lambda c: streams.opening_frames(c, run_id))
            self._folds[run_id] = Folding.resume(run_id, saved, opening, self._new_fold, self._load_fold)
            self._folds[run_id].saved_at = self._clock()
            self._folds[run_id].is_joining = run_id not in self._careful
            self._evict()
        self._folds.move_to_end(run_id)
        return self._folds[run_id]

    def _evict(self) -> None:
        if len(self._folds) <= MAX_FOLDS:
            return
        for folding in list(self._folds.values()):  # the oldest first
            if not folding.unsaved_frames or self._try_save(folding):
                self._folds.pop(folding.run_id, None)
                return

    def _save_due(self) -> None:
        now = self._clock()
        for folding in list(self._folds.values()):
            is_old = folding.unsaved_frames and now - folding.saved_at >= SAVE_AFTER_S
            if folding.must_save or is_old or folding.unsaved_frames >= SAVE_FRAMES:
                self._try_save(folding)

    def _try_save(self, folding: Folding) -> bool:
        """Save; where that fails, what was said stays pending for a later tick."""
        if self._saves.is_resting(folding.run_id):
            return False
        if self._guarded(folding.run_id, partial(self._save, folding)):
            self._saves.forget(folding.run_id)
            return True
        self._saves.failed(folding.run_id)
        return False

    def _save(self, folding: Folding) -> None:
        """Write what the fold said and its state.

        Raises:
            Busy, StorageFailed: nothing was saved.
        """
        state, now = folding.fold.dump(), self._clock()
        changed = self._database.write(lambda c: self._write(c, folding, state, now)).result()
        if changed is None:
            self._forget(folding.run_id)
            return
        folding.saved(now)
        if changed:
            self._on_change(changed)

    def _write(
        self, connection: sqlite3.Connection, folding: Folding, state: bytes, now: float
    ) -> Changed | None:
        """Return what changed, or None where the run was deleted."""
        if not streams.save_fold(connection, folding.run_id, state, folding.progress):
            return None
        return save_changes(connection, folding.pending.values(), self._enqueue_alerts, now)


def save_changes(
    connection: sqlite3.Connection, incidents: Iterable[Incident], enqueue_alerts: EnqueueAlerts, now: float
) -> Changed:
    """Keep `incidents` and the alerts about them; return those that are news."""
    changed: Changed = []
    for found in incidents:
        incident = _marked_late(connection, found)
        change = save_incident(connection, incident, now)
        if change != "unchanged":
            enqueue_alerts(connection, incident, change, now)
            changed.append((incident, change))
    return changed


def _marked_late(connection: sqlite3.Connection, incident: Incident) -> Incident:
    # The rest of a session that was live until its process died may come by `sync`: old news by then.
    if incident.late or not streams.is_late(connection, _stream_of(incident)):
        return incident
    before = find_incident(connection, incident.run_id, incident.id)
    return incident if before and not before.late else msgspec.structs.replace(incident, late=True)


def _stream_of(incident: Incident) -> StreamKey:
    return StreamKey(incident.run_id, incident.rank, incident.session_id)
