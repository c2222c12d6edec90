from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from sqlite3 import Connection

import numpy as np
import pytest

from client_frames import hello, steps
from trainvitals import wire
from trainvitals_server.batch import Batch, Readable
from trainvitals_server.config import Config
from trainvitals_server.fold import RunFold
from trainvitals_server.incident import Incident
from trainvitals_server.pipeline import Pipeline
from trainvitals_server.store.database import Database
from trainvitals_server.store.incidents import list_incidents
from trainvitals_server.store.streams import load_fold
from trainvitals_server.store.summaries import RunSummary

pytestmark = pytest.mark.anyio
TIMEOUT_S = 30.0


class Screen:
    """Stands for the live hub: remembers what it is shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int, Batch]] = []
        self.incidents: list[Incident] = []
        self.runs: list[RunSummary] = []
        self.gone: list[str] = []
        self.news = asyncio.Event()
        self.browsers = 1

    def publish_rows(self, run_id: str, rank: int, rows: Readable) -> None:
        self.shown.append((run_id, rank, rows.read()))

    def publish_incident(self, incident: Incident) -> None:
        self.incidents.append(incident)
        self.news.set()

    def publish_run(self, run: RunSummary) -> None:
        self.runs.append(run)
        self.news.set()

    def publish_gone(self, run_id: str) -> None:
        self.gone.append(run_id)


class Parts:
    """A pipeline with everything real but the screen and the post office."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path)
        self.screen = Screen()
        self.alerts: list[tuple[str, str]] = []
        self.wakes = 0
        self.now = 1_700_000_000.0
        self.pipeline = Pipeline(
            self.database,
            self.screen,
            config=Config(port=1),
            new_fold=RunFold,
            load_fold=RunFold.load,
            enqueue_alerts=self.enqueue,
            wake_outbox=self.wake,
            clock=lambda: self.now,
        )

    def enqueue(self, _connection: Connection, incident: Incident, change: str, _now: float) -> None:
        self.alerts.append((incident.kind, change))

    def wake(self) -> None:
        self.wakes += 1

    def incidents(self, run_id: str = "run") -> list[Incident]:
        return self.database.read(lambda c: list_incidents(c, run_id))

    async def see(self, number: int) -> list[Incident]:
        """Wait until so many incidents were shown."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.screen.incidents) < number:
                self.screen.news.clear()
                await self.screen.news.wait()
        return self.screen.incidents


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Parts]:
    parts = Parts(path)
    await parts.pipeline.start()
    try:
        yield parts
    finally:
        await parts.pipeline.close()
        parts.database.close()


def sudden_nan(seq: int = 1) -> wire.Steps:
    """Return 200 good steps and a NaN."""
    loss = np.append(1.0 + 0.01 * np.sin(np.arange(200)), np.nan)
    return steps(seq, 0, loss, grad_norm=np.append(np.ones(200), np.nan))


async def test_rows_are_shown_once_they_are_committed_and_duplicates_are_not(tmp_path: Path) -> None:
    async with running(tmp_path / "test.db") as parts:
        stream = await parts.pipeline.open(hello())
        await parts.pipeline.accept(stream, [steps(1, 0, [1.0, 2.0])])
        await parts.pipeline.accept(stream, [steps(1, 0, [1.0, 2.0]), steps(2, 2, [3.0])])
        assert [(run, rank, list(batch.steps)) for run, rank, batch in parts.screen.shown] == [
            ("run", 0, [0, 1]),
            ("run", 0, [2]),
        ]


async def test_an_incident_is_stored_shown_alerted_and_told_to_its_process(tmp_path: Path) -> None:
    notices: list[wire.ServerFrame] = []
    strangers: list[wire.ServerFrame] = []
    async with running(tmp_path / "test.db") as parts:
        stream = await parts.pipeline.open(hello())
        parts.pipeline.listen(stream, notices.append)
        parts.pipeline.listen(await parts.pipeline.open(hello("other")), strangers.append)
        await parts.pipeline.accept(stream, [sudden_nan()])
        (shown,) = await parts.see(1)
        assert shown.kind == "sudden_nan"
        assert [incident.id for incident in parts.incidents()] == [shown.id]
        assert parts.alerts == [("sudden_nan", "new")]
        assert parts.wakes == 1
    (notice,) = notices
    assert isinstance(notice, wire.IncidentNotice)
    assert (notice.incident_id, notice.onset_step, notice.verdict) == (shown.id, 200, shown.verdict)
    assert notice.url == f"http://127.0.0.1:1/runs/run?incident={shown.id}"
    assert strangers == []


def sinking_scale(seq: int, first_step: int, rows: int) -> wire.Steps:
    """Return rows whose loss is NaN and whose scaler skips each update and halves its scale."""
    nan = np.full(rows, np.nan)
    scale = 2.0**15 * 0.5 ** np.arange(rows)
    return steps(seq, first_step, nan, grad_norm=nan, loss_scale=scale, skipped=np.ones(rows))


async def test_a_scale_that_begins_to_sink_is_one_more_word_to_the_process(tmp_path: Path) -> None:
    told: list[str] = []
    scale = np.full(200, 2.0**15)
    good = steps(
        1, 0, 1.0 + 0.01 * np.sin(np.arange(200)), grad_norm=np.ones(200), loss_scale=scale, skipped=0 * scale
    )
    async with running(tmp_path / "test.db") as parts:
        stream = await parts.pipeline.open(hello())

        def listen(frame: wire.ServerFrame) -> None:
            assert isinstance(frame, wire.IncidentNotice)
            told.append(frame.news)

        parts.pipeline.listen(stream, listen)
        await parts.pipeline.accept(stream, [good, sinking_scale(2, 200, 1)])
        await parts.see(1)
        await parts.pipeline.accept(stream, [sinking_scale(3, 201, 20)])
        await parts.see(2)
    assert parts.alerts == [("sudden_nan", "new"), ("sudden_nan", "worsened")]
    assert told == ["", "the loss scale is sinking, and at this pace is 0 in about 184 steps"]


async def test_an_incident_and_the_state_that_has_seen_it_are_one_transaction(tmp_path: Path) -> None:
    async with running(tmp_path / "test.db") as parts:
        stream = await parts.pipeline.open(hello())
        await parts.pipeline.accept(stream, [sudden_nan()])
        await parts.see(1)
        saved = parts.database.read(lambda c: load_fold(c, "run"))
    assert saved is not None
    state, progress = saved
    assert progress == {"0/s1": 1}
    assert [incident.kind for incident in RunFold.load(state).incidents()] == ["sudden_nan"]


async def test_a_late_spool_is_judged_and_notifies_nobody(tmp_path: Path) -> None:
    notices: list[wire.ServerFrame] = []
    async with running(tmp_path / "test.db") as parts:
        stream = await parts.pipeline.open(hello(late=True))
        parts.pipeline.listen(stream, notices.append)
        await parts.pipeline.accept(stream, [sudden_nan()])
        (shown,) = await parts.see(1)
        assert shown.late
        assert parts.screen.shown == []
    assert notices == []


async def test_the_rest_of_a_session_that_comes_late_is_late_as_well(tmp_path: Path) -> None:
    async with running(tmp_path / "test.db") as parts:
        stream = await parts.pipeline.open(hello())
        await parts.pipeline.accept(stream, [steps(1, 0, np.ones(50))])
        stream = await parts.pipeline.open(hello(late=True))
        loss = np.append(np.ones(50), np.nan)
        await parts.pipeline.accept(stream, [steps(2, 50, loss, grad_norm=loss)])
        (shown,) = await parts.see(1)
    assert (shown.late, shown.onset_step) == (True, 100)


async def test_what_was_stored_but_not_judged_is_judged_after_the_next_start(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "test.db")  # never started: nobody judges
    stream = await parts.pipeline.open(hello())
    await parts.pipeline.accept(stream, [sudden_nan()])
    parts.database.close()
    async with running(tmp_path / "test.db") as parts:
        assert [incident.kind for incident in await parts.see(1)] == ["sudden_nan"]
    async with running(tmp_path / "test.db") as parts:
        stream = await parts.pipeline.open(hello("other"))
        await parts.pipeline.accept(stream, [sudden_nan()])
        assert [incident.run_id for incident in await parts.see(1)] == ["other"]
        assert parts.alerts == [("sudden_nan", "new")]


async def test_the_board_hears_of_a_run_with_its_speed_and_its_worst_incident(tmp_path: Path) -> None:
    async with running(tmp_path / "test.db") as parts:
        stream = await parts.pipeline.open(hello())
        await parts.pipeline.accept(stream, [steps(1, 0, [1.0])])
        parts.now += 2.0
        loss = np.append(np.ones(199), np.nan)
        await parts.pipeline.accept(stream, [steps(2, 1, loss, grad_norm=loss)])
        await parts.see(1)
        async with asyncio.timeout(TIMEOUT_S):
            while not parts.screen.runs or parts.screen.runs[-1].worst_incident is None:
                parts.screen.news.clear()
                await parts.screen.news.wait()
        run = parts.screen.runs[-1]
    assert (run.run_id, run.last_step, run.steps_per_s, run.open_incidents) == ("run", 200, 100.0, 1)
    assert run.worst_incident is not None
    assert run.worst_incident.kind == "sudden_nan"


async def test_the_board_hears_of_a_run_as_soon_as_somebody_looks_again(tmp_path: Path) -> None:
    async with running(tmp_path / "test.db") as parts:
        parts.screen.browsers = 0
        stream = await parts.pipeline.open(hello())
        await parts.pipeline.accept(stream, [steps(1, 0, [1.0])])
        await parts.pipeline._announcer._publish_changed()
        assert parts.screen.runs == []
        parts.screen.browsers = 1
        await parts.pipeline._announcer._publish_changed()
        assert [run.last_step for run in parts.screen.runs] == [0]


def layer_row(seq: int, layers: int) -> wire.Steps:
    """Return one row of so many layers, of layout 1."""
    column = wire.Column.pack(np.ones(layers))
    return wire.Steps(
        seq=seq, first_step=seq, count=1, layout_id=1, layer_columns={"layer_grad_norm": column}
    )


async def test_a_layout_keeps_its_layers_for_the_whole_session(tmp_path: Path) -> None:
    first = wire.Layout(seq=1, layout_id=1, layers=[wire.Layer(name="a")])
    other = wire.Layout(seq=3, layout_id=1, layers=[wire.Layer(name="b"), wire.Layer(name="c")])
    async with running(tmp_path / "test.db") as parts:
        stream = await parts.pipeline.open(hello())
        await parts.pipeline.accept(stream, [first, layer_row(2, 1)])
        for again in (stream, await parts.pipeline.open(hello())):  # in one connection, and in the next
            found = await parts.pipeline.accept(again, [other, layer_row(4, 2)])
            assert found.reject is not None
            assert (found.acked_seq, found.reject.code, found.reject.seq) == (2, "conflict", 3)
        same = wire.Layout(seq=3, layout_id=1, layers=[wire.Layer(name="a")])
        found = await parts.pipeline.accept(stream, [same, layer_row(4, 1)])
        assert (found.acked_seq, found.reject) == (4, None)


async def test_a_deleted_run_is_forgotten_by_the_detectors_too(tmp_path: Path) -> None:
    async with running(tmp_path / "test.db") as parts:
        stream = await parts.pipeline.open(hello())
        await parts.pipeline.accept(stream, [sudden_nan()])
        (first,) = await parts.see(1)
        await parts.pipeline.delete("run")
        assert parts.incidents() == []
        assert parts.screen.gone == ["run"]
        stream = await parts.pipeline.open(hello())
        await parts.pipeline.accept(stream, [sudden_nan()])
        _, second = await parts.see(2)
    assert second.id == first.id
