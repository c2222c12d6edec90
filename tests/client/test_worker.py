from __future__ import annotations

import logging
import threading
from pathlib import Path

import numpy as np
import pytest

from client_rows import hello, lost, rows, told
from trainvitals import wire
from trainvitals.intake import Delivery, Draft, Intake
from trainvitals.rows import Cells, Rows
from trainvitals.spool import Spool, session_directory
from trainvitals.transport import Link, LinkError, MemoryTransport, Unauthorized
from trainvitals.worker import PERSIST_AFTER_S, Options, Worker
from wire_server import Store

TIMEOUT_S = 10.0


class Broken:
    """A transport whose every link fails."""

    def __init__(self, problem: LinkError) -> None:
        self._problem = problem
        self.over = threading.Event()

    def link(self) -> Link:
        return self

    def run(self, hello: bytes, deliver: object) -> None:
        self.over.set()
        raise self._problem

    def send(self, frames: object) -> None:
        raise self._problem

    def close(self, *, abrupt: bool = False) -> None:
        pass


class Silent(MemoryTransport):
    """A server that answers the Hello and then nothing."""

    def __init__(self) -> None:
        welcome = wire.encode(wire.Welcome(acked_seq=0))
        super().__init__(lambda data: [welcome] if b"hello" in data else [])


class Bench:
    """A worker that is turned by hand."""

    def __init__(self, folder: Path, transport: object, **options: object) -> None:
        self.intake = Intake()
        self.worker = Worker(
            hello(),
            self.intake,
            Options(
                url="http://127.0.0.1:8765",
                spool_dir=folder,
                transport=transport,  # type: ignore[arg-type]
                clock=lambda: 0.0,
                **options,  # type: ignore[arg-type]
            ),
        )
        self.worker.begin()
        self.folder = session_directory(folder, "run", "s1")

    def turn(self, now: float, *drafts: Draft) -> float:
        return self.worker.step(now, Delivery(list(drafts)))

    def connect(self, now: float = 0.0) -> None:
        self.worker.courier.heartbeat(wire.encode(wire.Heartbeat(next_within_s=1.0)))
        self.turn(now)
        while not self.worker.courier.is_connected:
            self.intake.wait(TIMEOUT_S)
            self.intake.take(now)
            self.turn(now)

    def spooled(self) -> list[int]:
        if not self.folder.exists():
            return []
        spool = Spool.load(self.folder)
        found, seq = list[int](), spool.first_seq or 1
        while seq <= spool.last_seq:
            for frame in spool.read(seq):
                message = wire.decode_client(frame.payload)
                assert not isinstance(message, wire.Hello | wire.Heartbeat)
                found += told([message])
                seq = frame.last_seq + 1
        return found


def test_what_is_not_acknowledged_in_half_a_second_is_on_disk(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Silent())
    bench.connect()
    deadline = bench.turn(1.0, rows(0, 5))
    assert deadline == 1.0 + PERSIST_AFTER_S
    assert bench.spooled() == []
    bench.turn(deadline)
    assert bench.spooled() == [0, 1, 2, 3, 4]
    bench.worker.end()


def test_without_a_server_rows_go_to_disk_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Broken(LinkError("refused")))
    bench.turn(0.0, rows(0, 5))
    assert bench.spooled() == [0, 1, 2, 3, 4]
    bench.worker.end()


def test_nothing_is_written_while_the_server_answers_promptly(tmp_path: Path) -> None:
    store = Store()
    bench = Bench(tmp_path, MemoryTransport(store.handler()))
    bench.connect()
    for step in range(100):
        bench.turn(step * 0.1, rows(step, step + 1))
        bench.turn(step * 0.1)
    bench.worker.end()
    assert told(store.frames["s1"]) == list(range(100))
    assert not bench.folder.parent.exists()


def test_a_promise_is_made_by_the_training_and_never_renewed_without_it(tmp_path: Path) -> None:
    store = Store()
    bench = Bench(tmp_path, MemoryTransport(store.handler()))
    bench.connect()
    bench.turn(1.0, rows(0, 1))
    for minute in range(60):
        bench.turn(60.0 * minute)
    assert [beat.next_within_s for beat in store.heartbeats] == [1.0]
    bench.worker.end()


def test_a_server_that_goes_and_comes_back_is_a_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    bench = Bench(tmp_path, MemoryTransport(store.handler()))
    bench.connect()
    reachable = bench.worker.courier._transport
    bench.worker.courier._transport = Broken(LinkError("received 1012 (service restart)"))
    bench.worker.courier._lose(LinkError("received 1012 (service restart)"), 0.0)
    for second in range(0, 40, 10):
        bench.turn(float(second), rows(second, second + 1))
    (away,) = caplog.messages
    assert away.startswith(
        "lost the server at http://127.0.0.1:8765; training goes on and unsent rows are kept"
    )
    assert away.endswith(f"if the process ends first: `trainvitals sync {tmp_path}`")
    assert "1012" not in away
    bench.worker.courier.close(abrupt=True)
    bench.worker.courier._transport = reachable
    bench.connect(200.0)
    bench.turn(200.0)
    assert caplog.messages[1:] == ["back again: http://127.0.0.1:8765 gets what it missed"]
    bench.worker.end()


@pytest.mark.parametrize("problem", [LinkError("refused"), Unauthorized("401")])
def test_trouble_is_one_line_with_the_way_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, problem: LinkError
) -> None:
    broken = Broken(problem)
    bench = Bench(tmp_path, broken)
    with caplog.at_level(logging.INFO):
        for second in range(300):
            bench.turn(60.0 * second, rows(second, second + 1))
            assert broken.over.wait(TIMEOUT_S)
    (record,) = caplog.records
    words = record.getMessage()
    for part in ("http://127.0.0.1:8765", str(bench.folder), f"trainvitals sync {tmp_path}", str(problem)):
        assert part in words
    assert ("trainvitals serve" in words) == (not isinstance(problem, Unauthorized))
    bench.worker.end()


def test_with_memory_and_disk_full_the_latest_rows_and_the_first_are_kept(tmp_path: Path) -> None:
    store = Store()
    bench = Bench(tmp_path, Broken(LinkError("refused")), memory_bytes=20_000, spool_bytes=20_000)
    for step in range(500):
        bench.turn(step * 0.1, rows(step, step + 1))
    bench.worker.courier._transport = MemoryTransport(store.handler())  # the server is back
    now = 1000.0
    while not bench.worker.is_done:
        bench.intake.wait(0.05)
        bench.intake.take(now)
        now = min(bench.turn(now), now + 10.0)
    kept = told(store.frames["s1"])
    assert kept[:20] == list(range(20))
    assert kept[-20:] == list(range(480, 500))
    assert lost(store.frames["s1"]) == {"spool_full": 500 - len(kept)} == bench.worker.dropped
    bench.worker.end()


def test_rows_that_fit_no_frame_are_declared_and_the_rest_arrives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    bench = Bench(tmp_path, MemoryTransport(store.handler()))
    bench.connect()
    short: dict[str, Cells] = {"loss": (np.ones(3), None)}
    words: dict[str, Cells] = {"loss": (np.array(["a", "b"]), None)}
    bench.turn(0.0, rows(0, 2), Rows(np.arange(2, 4), np.zeros(2), short))
    bench.turn(0.0, Rows(np.arange(4, 6), np.zeros(2), words), wire.Bye(seq=1, status="finished"))
    bench.turn(0.0, Rows(np.array([-1]), np.zeros(1), {}), rows(6, 8))
    bench.turn(0.0)
    frames = store.frames["s1"]
    assert told(frames) == [0, 1, 6, 7]
    assert [frame.seq for frame in frames] == list(range(1, len(frames) + 1))
    assert lost(frames) == {"invalid": 5}
    assert [wire.decode_client(wire.encode(frame)) for frame in frames] == frames  # a server takes them
    assert len(caplog.records) == 1
    bench.worker.end()
