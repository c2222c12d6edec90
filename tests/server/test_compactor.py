from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from client_frames import hello, steps
from trainvitals_server.compactor import Compactor
from trainvitals_server.store import runs, streams
from trainvitals_server.store.database import Database
from trainvitals_server.store.runs import StreamKey

pytestmark = pytest.mark.anyio
TIMEOUT_S = 20.0
NOW = 1_700_000_000.0
FRAMES = 600


def store(database: Database, run_id: str) -> None:
    key = StreamKey(run_id, 0, "s1")
    frames = [steps(seq, 10 * seq, [1.0] * 10) for seq in range(1, FRAMES + 1)]
    database.write(lambda c: runs.upsert_hello(c, hello(run_id), NOW)).result(TIMEOUT_S)
    database.write(lambda c: runs.append_frames(c, *key, frames, NOW)).result(TIMEOUT_S)


def left(database: Database, run_id: str = "run") -> list[int]:
    """Return the seqs of the frames that are not compacted."""
    query = "SELECT seq FROM frame WHERE run_id = ? AND kind = 'steps' ORDER BY seq"
    return database.read(lambda c: [seq for (seq,) in c.execute(query, (run_id,))])


async def compact_until(
    database: Database, condition: Callable[[], bool], clock: Callable[[], float] = lambda: NOW
) -> None:
    compactor = Compactor(database, clock)
    await compactor.start()
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)
    await compactor.close()


async def test_it_compacts_what_the_saved_fold_has_seen_and_no_more(tmp_path: Path) -> None:
    database = Database(tmp_path / "test.db")
    store(database, "run")
    database.write(lambda c: streams.save_fold(c, "run", b"", {"0/s1": 500})).result(TIMEOUT_S)
    await compact_until(database, lambda: len(left(database)) < 250)
    assert left(database)[-100:] == list(range(501, FRAMES + 1))
    database.close()


async def test_a_run_that_no_saved_fold_has_seen_is_left_alone(tmp_path: Path) -> None:
    database = Database(tmp_path / "test.db")
    store(database, "a new run")
    store(database, "judged")
    database.write(lambda c: streams.save_fold(c, "judged", b"", {"0/s1": FRAMES})).result(TIMEOUT_S)
    await compact_until(database, lambda: len(left(database, "judged")) < 250)
    assert left(database, "a new run") == list(range(1, FRAMES + 1))
    database.close()


async def test_a_session_that_cannot_be_compacted_holds_up_no_other_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainvitals_server.compactor.PAUSE_S", 0.01)
    rounds: list[float] = []

    def clock() -> float:
        rounds.append(NOW)
        return NOW

    database = Database(tmp_path / "test.db")
    for run_id in ("a broken run", "sound"):
        store(database, run_id)
        save = partial(streams.save_fold, run_id=run_id, state=b"", progress={"0/s1": FRAMES})
        database.write(save).result(TIMEOUT_S)
    spoil = "UPDATE frame SET payload = x'00' WHERE run_id = 'a broken run' AND seq = 5"
    database.write(lambda c: c.execute(spoil).rowcount).result(TIMEOUT_S)
    with caplog.at_level(logging.ERROR):
        await compact_until(database, lambda: not left(database, "sound") and len(rounds) > 5, clock)
        assert left(database, "a broken run") == list(range(1, FRAMES + 1))
    assert [record.getMessage().split(": ")[:2] for record in caplog.records] == [
        ["compaction failed", "a broken run/0/s1"]
    ]
    database.close()
