from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import ClassVar

import numpy as np
import pytest

from client_frames import hello, steps
from trainvitals import wire
from trainvitals_server.batch import Batch
from trainvitals_server.detector import FOLD_EVERY_S, SAVE_AFTER_S, TICK_S, Changed, Detector
from trainvitals_server.folding import Folding
from trainvitals_server.incident import Incident
from trainvitals_server.store import runs, streams
from trainvitals_server.store.database import Database
from trainvitals_server.store.incidents import list_incidents
from trainvitals_server.store.runs import StreamKey
from trainvitals_server.store.streams import StoredFrame

TIMEOUT_S = 20.0
NOW = 1_700_000_000.0
UNLUCKY, NOTICED = 13.0, 50.0
BROKEN = "broken"
KEY = StreamKey("run", 0, "s1")


class Ninety:
    """A fold that says an incident for each loss of exactly 90, fails on 13, and is noticed to fold 50.

    There is none for the run BROKEN.
    """

    has_noticed = threading.Event()
    tries: ClassVar[list[float]] = []

    def __init__(self, run_id: str) -> None:
        if run_id == BROKEN:
            self.tries.append(time.monotonic())
            raise ArithmeticError("no fold")
        self.run_id = run_id
        self.told: list[str] = []

    def hello(self, hello: wire.Hello) -> None:
        self.told.append(f"hello {hello.session_id}")

    def layout(self, rank: int, session_id: str, layout: wire.Layout) -> None:
        self.told.append(f"layout {layout.layout_id}")

    def rows(self, rank: int, session_id: str, batch: Batch) -> list[Incident]:
        loss = batch.columns["loss"].values
        if UNLUCKY in loss:
            raise ArithmeticError("thirteen")
        if NOTICED in loss:
            self.has_noticed.set()
        self.told += [f"step {step}" for step in batch.steps]
        return [self._incident(int(step)) for step in batch.steps[loss == 90.0]]

    def event(self, rank: int, session_id: str, event: wire.Event) -> list[Incident]:
        return []

    def bye(self, rank: int, session_id: str, bye: wire.Bye) -> list[Incident]:
        return []

    def dump(self) -> bytes:
        return "\n".join([self.run_id, *self.told]).encode()

    @classmethod
    def load(cls, data: bytes) -> Ninety:
        run_id, *told = data.decode().split("\n")
        fold = cls(run_id)
        fold.told = told
        return fold

    def _incident(self, step: int) -> Incident:
        return Incident(
            id=f"ninety-{step}",
            run_id=self.run_id,
            kind="loss_spike",
            severity="warning",
            onset_step=step,
            detected_step=step,
            session_id="s1",
        )


class Watch:
    """A database with one session, its detector, and what the detector says."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path)
        self.said: queue.Queue[Changed] = queue.Queue()
        self.now = NOW
        self.refuse_alerts = threading.Event()
        self.refused_run: str | None = None
        self.detector = Detector(
            self.database,
            new_fold=Ninety,
            load_fold=Ninety.load,
            enqueue_alerts=self._enqueue,
            on_change=self.said.put,
            clock=lambda: self.now,
        )
        self.database.write(lambda c: runs.upsert_hello(c, hello(), NOW)).result(TIMEOUT_S)
        self.seq = 0

    def _enqueue(self, connection: Connection, incident: Incident, change: str, now: float) -> None:
        if self.refuse_alerts.is_set() or incident.run_id == self.refused_run:
            raise LookupError("no alerts today")

    def store(self, *losses: float) -> None:
        """Store one frame for each loss, step = seq, and wake the detector."""
        frames = [steps(self.seq + i, self.seq + i, [loss]) for i, loss in enumerate(losses, 1)]
        self.seq += len(frames)
        self.database.write(lambda c: runs.append_frames(c, *KEY, frames, NOW)).result(TIMEOUT_S)
        self.detector.wake("run")

    def hear(self) -> list[str]:
        """Wait for the next word of the detector."""
        return [f"{incident.id} {change}" for incident, change in self.said.get(timeout=TIMEOUT_S)]

    def saved(self) -> tuple[list[str], dict[str, int]]:
        """Return what the saved fold has been told, and how far it is."""
        found = self.database.read(lambda c: streams.load_fold(c, "run"))
        assert found is not None
        return Ninety.load(found[0]).told, found[1]

    def wait_until_saved(self, seq: int) -> None:
        """Wait for a saved state that has seen the frames up to `seq`."""
        deadline, pause = time.monotonic() + TIMEOUT_S, threading.Event()
        while self.database.read(lambda c: streams.judged(c, 0.0)) != [(KEY, seq)]:
            assert time.monotonic() < deadline
            pause.wait(0.01)

    def close(self) -> None:
        self.detector.close()
        self.database.close()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    opened = Watch(tmp_path / "test.db")
    opened.detector.start()
    yield opened
    opened.close()


def test_incidents_are_saved_with_the_state_that_said_them(watch: Watch) -> None:
    watch.store(1.0, 90.0, 2.0)
    assert watch.hear() == ["ninety-2 new"]
    told, progress = watch.saved()
    assert told[:3] == ["hello s1", "step 1", "step 2"]
    assert progress["0/s1"] == len(told) - 1


def test_closing_saves_what_was_folded_and_a_start_goes_on_from_there(tmp_path: Path) -> None:
    first = Watch(tmp_path / "test.db")
    first.detector.start()
    first.store(90.0)
    first.hear()
    Ninety.has_noticed.clear()
    first.store(NOTICED)
    assert Ninety.has_noticed.wait(TIMEOUT_S)
    first.close()
    second = Watch(tmp_path / "test.db")
    second.seq = 2
    assert second.saved()[1] == {"0/s1": 2}
    second.store(1.0, 90.0)
    second.detector.start()
    assert second.hear() == ["ninety-4 new"]
    assert second.saved()[0] == ["hello s1", "step 1", "step 2", "step 3", "step 4"]
    second.close()


def test_a_frame_that_breaks_the_fold_is_passed_over_and_said_once(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        watch.store(90.0, UNLUCKY, 1.0, UNLUCKY, 90.0)
        heard = watch.hear()
        if len(heard) == 1:
            heard += watch.hear()
    assert heard == ["ninety-1 new", "ninety-5 new"]
    assert [record.getMessage() for record in caplog.records] == [
        "detection failed: run: ArithmeticError('thirteen')"
    ]


def test_what_could_not_be_saved_is_saved_later(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    watch.refuse_alerts.set()
    with caplog.at_level(logging.CRITICAL):
        watch.store(90.0)
        with pytest.raises(queue.Empty):
            watch.said.get(timeout=0.5)
        assert watch.database.read(lambda c: list_incidents(c, "run")) == []
        watch.refuse_alerts.clear()
        assert watch.hear() == ["ninety-1 new"]


def open_run(watch: Watch, run_id: str, *losses: float) -> None:
    """Store another run, one frame for each loss, and wake the detector."""
    frames = [steps(i, i, [loss]) for i, loss in enumerate(losses, 1)]
    key = StreamKey(run_id, 0, "s1")
    watch.database.write(lambda c: runs.upsert_hello(c, hello(run_id), NOW)).result(TIMEOUT_S)
    watch.database.write(lambda c: runs.append_frames(c, *key, frames, NOW)).result(TIMEOUT_S)
    watch.detector.wake(run_id)


def test_a_run_that_cannot_be_saved_holds_up_no_other(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    watch.refused_run = "run"
    with caplog.at_level(logging.CRITICAL):
        watch.store(90.0)
        open_run(watch, "other", 1.0, 90.0)
        assert watch.hear() == ["ninety-2 new"]


def test_a_run_that_cannot_be_judged_is_tried_again_after_pauses_and_holds_up_no_other(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    Ninety.tries.clear()
    with caplog.at_level(logging.CRITICAL):
        open_run(watch, BROKEN, 1.0)
        watch.store(90.0)
        assert watch.hear() == ["ninety-1 new"]
        deadline, pause = time.monotonic() + TIMEOUT_S, threading.Event()
        while len(Ninety.tries) < 3:
            assert time.monotonic() < deadline
            pause.wait(0.01)
    first, second, third = Ninety.tries[:3]
    assert second - first >= TICK_S
    assert third - second >= 2 * TICK_S


def test_a_run_without_incidents_is_saved_at_its_end(watch: Watch) -> None:
    watch.store(1.0, 2.0)
    bye = wire.Bye(seq=3, status="finished")
    watch.database.write(lambda c: runs.append_frames(c, *KEY, [bye], NOW)).result(TIMEOUT_S)
    watch.detector.wake("run")
    watch.wait_until_saved(3)


def test_a_run_without_incidents_is_saved_after_a_while(watch: Watch) -> None:
    watch.store(90.0)
    watch.hear()
    watch.store(1.0, 2.0)
    watch.now += SAVE_AFTER_S
    watch.wait_until_saved(3)


def frame(seq: int, message: wire.ClientFrame, kind: str) -> StoredFrame:
    return StoredFrame(0, "s1", seq, kind, wire.encode(message))


def test_a_state_of_another_version_begins_afresh_but_knows_the_layers() -> None:
    def refuse(data: bytes) -> Ninety:
        raise ValueError("another version")

    layout = wire.Layout(seq=1, layout_id=1, layers=[wire.Layer(name="a"), wire.Layer(name="b")])
    opening = [
        frame(0, hello(), "hello"),
        frame(1, layout, "layout"),
        frame(9, wire.Layout(seq=9, layout_id=2), "layout"),
    ]
    folding = Folding.resume("run", (b"?", {"0/s1": 5}), opening, Ninety, refuse)
    assert isinstance(folding.fold, Ninety)
    assert folding.fold.told == ["hello s1", "layout 1"]

    column = wire.Column.pack(np.ones(2))
    rows = wire.Steps(
        seq=6, first_step=6, count=1, layout_id=1,
        columns={"loss": wire.Column.pack([90.0])}, layer_columns={"layer_grad_norm": column},
    )  # fmt: skip
    folding.take([frame(6, rows, "steps")])
    assert list(folding.pending) == ["ninety-6"]
    assert (folding.progress, folding.must_save) == ({"0/s1": 6}, True)
    folding.saved(NOW)
    assert (folding.pending, folding.must_save) == ({}, False)


def rows_frame(seq: int, losses: list[float], **columns: list[float]) -> StoredFrame:
    return frame(seq, steps(seq, seq * 10, losses, **columns), "steps")


class Listening(Ninety):
    """Notes the first step and the size of every batch."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.batches: list[tuple[int, int]] = []

    def rows(self, rank: int, session_id: str, batch: Batch) -> list[Incident]:
        self.batches.append((int(batch.steps[0]), len(batch)))
        return super().rows(rank, session_id, batch)


def test_the_rows_of_neighbouring_frames_are_folded_as_one_batch() -> None:
    fold = Listening("run")
    folding = Folding("run", fold, {})
    event = frame(3, wire.Event(seq=3, step=21, kind="epoch"), "event")
    folding.take([rows_frame(1, [1.0, 90.0]), rows_frame(2, [2.0]), event, rows_frame(4, [90.0])])
    assert fold.batches == [(10, 3), (40, 1)]
    assert list(folding.pending) == ["ninety-11", "ninety-40"]
    assert folding.progress == {"0/s1": 4}
    assert folding.unsaved_frames == 4


def test_frames_are_not_joined_where_that_would_invent_missing_cells_or_steps_go_back() -> None:
    fold = Listening("run")
    wide, back = rows_frame(2, [2.0], grad_norm=[1.0]), frame(4, steps(4, 5, [1.0]), "steps")
    Folding("run", fold, {}).take([rows_frame(1, [1.0]), wide, rows_frame(3, [1.0]), back])
    assert fold.batches == [(10, 1), (20, 1), (30, 1), (5, 1)]


def test_rows_that_follow_at_once_wait_for_more_and_what_is_no_row_does_not(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "test.db")
    detector = watch.detector  # turned by hand
    detector.wake("run", at_once=False)
    assert detector._next() == "run"
    detector.wake("run", at_once=False)
    assert detector._due() is None
    assert 0 < detector._pause() <= FOLD_EVERY_S
    detector.wake("other", at_once=False)
    assert detector._next() == "other"
    detector.wake("run")
    assert detector._next() == "run"
    watch.close()
