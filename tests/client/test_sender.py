from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
import pytest

from client_rows import hello, rows, told
from trainvitals import wire
from trainvitals.rows import Rows
from trainvitals.sender import Sender
from trainvitals.sync import upload
from trainvitals.transport import MemoryTransport, Transport
from wire_server import Store, http_server, websocket_server

TIMEOUT_S = 20.0
NO_SERVER = "http://127.0.0.1:9"  # the discard port: nobody listens there


@contextmanager
def sender(
    folder: Path, url: str = NO_SERVER, session_id: str = "s1", transport: Transport | None = None
) -> Iterator[Sender]:
    one = Sender(hello(session_id=session_id), url=url, spool_dir=folder, transport=transport, console=False)
    try:
        yield one
    finally:
        one.close(TIMEOUT_S)


@pytest.mark.parametrize("serve", [websocket_server, http_server])
def test_everything_handed_over_arrives_once_and_in_order(tmp_path: Path, serve: type) -> None:
    store = Store()
    with serve(store) as url, sender(tmp_path, url) as one:
        assert one.layout([wire.Layer(name="dense")], None) == 1
        for first in range(0, 1000, 10):
            one.rows(rows(first, first + 10))
        one.event("validation", 1000, {"val_loss": np.float32(0.5), "path": Path("x"), "list": [1, (2,)]})
        one.heartbeat(30.0, "validation")
        one.bye("finished", 1000)
        assert one.flush(TIMEOUT_S)
        assert one.dropped == {}
    frames = store.frames["s1"]
    assert isinstance(frames[0], wire.Layout)
    assert told(frames) == list(range(1000))
    event = frames[-2]
    assert isinstance(event, wire.Event)
    assert event.data == {"val_loss": 0.5, "path": "x", "list": [1, [2]]}
    assert frames[-1] == wire.Bye(seq=len(frames), status="finished", step=1000)
    assert store.heartbeats


@pytest.mark.parametrize("seed", range(4))
def test_under_a_server_that_fails_at_random_nothing_is_lost_or_doubled(tmp_path: Path, seed: int) -> None:
    store = Store(random=Random(seed), fault_rate=0.1)
    with websocket_server(store) as url, sender(tmp_path, url) as one:
        for first in range(0, 300, 3):
            one.rows(rows(first, first + 3))
            one.event("message", first, {"text": "goes out at once"})
        store.wait_for(lambda: store.faults >= 5)
        store.stop_faults()
        assert one.flush(TIMEOUT_S)
    assert told(store.frames["s1"]) == list(range(300))
    assert list((tmp_path / "sessions").glob("*")) == []


def test_a_second_fit_after_the_bye_revives_the_session(tmp_path: Path) -> None:
    store = Store()
    with websocket_server(store) as url, sender(tmp_path, url) as one:
        one.rows(rows(0, 3))
        one.bye("finished", 3)
        one.close(TIMEOUT_S)
        one.rows(rows(3, 6))
        assert one.flush(TIMEOUT_S)
    assert told(store.frames["s1"]) == list(range(6))
    assert len({said.session_ordinal for said in store.hellos}) == 1


def test_a_server_that_comes_late_gets_everything(tmp_path: Path) -> None:
    store = Store()
    with websocket_server(Store()) as url:
        port = int(url.rsplit(":", 1)[1])
    with sender(tmp_path, url) as one:
        one.rows(rows(0, 50))
        assert not one.flush(TIMEOUT_S)
        with websocket_server(store, port=port):
            assert one.flush(TIMEOUT_S)
    assert told(store.frames["s1"]) == list(range(50))


def test_the_environment_can_be_replaced_until_something_was_handed_over(tmp_path: Path) -> None:
    store = Store()
    with websocket_server(store) as url, sender(tmp_path, url) as one:
        one.update_hello(wire.Environment(optimizer="Adam"))
        one.rows(rows(0, 1))
        one.update_hello(wire.Environment(optimizer="SGD"))
        one.flush(TIMEOUT_S)
    assert store.hellos[0].environment.optimizer == "Adam"


def test_rows_lost_before_they_got_here_are_declared(tmp_path: Path) -> None:
    store = Store()
    with websocket_server(store) as url, sender(tmp_path, url) as one:
        one.lost("ring_overflow", 3, 9, 7)
        one.flush(TIMEOUT_S)
        assert one.dropped == {"ring_overflow": 7}
    gap = wire.Gap(seq=1, last_seq=1, reason="ring_overflow", first_step=3, last_step=9, steps_lost=7)
    assert store.frames["s1"] == [gap]


def test_a_stop_command_and_an_incident_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notice = wire.IncidentNotice(
        incident_id="i",
        kind="gradual_divergence",
        severity="critical",
        state="open",
        onset_step=812,
        detected_step=900,
        verdict="learning rate 0.1 too high",
        url="http://h/r",
    )
    stop = wire.Command(name="stop", reason="enough")
    welcome = [wire.encode(one) for one in (wire.Welcome(acked_seq=0), stop, notice)]
    heard = threading.Event()
    got: list[object] = []

    def on_incident(one: wire.IncidentNotice) -> None:
        got.append(one)
        heard.set()
        raise RuntimeError("the user's function fails")

    def on_command(one: wire.Command) -> None:
        got.append(one)
        raise RuntimeError("the user's function fails")

    one = Sender(
        hello(),
        url=NO_SERVER,
        spool_dir=tmp_path,
        transport=MemoryTransport(lambda data: welcome if b"hello" in data else []),
        on_incident=on_incident,
        on_command=on_command,
    )
    one.heartbeat(30.0)
    assert heard.wait(TIMEOUT_S)
    one.close(TIMEOUT_S)
    assert got == [stop, notice]
    line = "trainvitals: Gradual divergence since step 812: learning rate 0.1 too high -> http://h/r\n"
    assert line in capsys.readouterr().err


def test_nothing_that_is_handed_over_raises(tmp_path: Path) -> None:
    class Rude:
        def __str__(self) -> str:
            raise RuntimeError("no")

    store = Store()
    loop: dict[str, object] = {}
    loop["self"] = loop
    with websocket_server(store) as url, sender(tmp_path, url) as one:
        one.rows(Rows(np.arange(2), np.zeros(1), {"loss": (np.ones(7), None)}))
        one.rows(Rows(np.arange(0), np.zeros(0)))
        one.event("message", 1, {"rude": Rude(), "loop": loop, "big": "x" * 10**7, "\ud800": 2**70})
        one.bye("failed", 2, "x" * 10**6 + "\ud800")
        one.layout([wire.Layer(name="x" * 10_000)] * (wire.MAX_LAYERS + 1), None)
        one.rows(Rows(np.arange(5, 6), np.zeros(1), rows(5, 6).columns, {"g": (np.ones((1, 9)), None)}, 1))
        assert one.flush(TIMEOUT_S)
    assert told(store.frames["s1"]) == [5]
    assert one.dropped == {"invalid": 3, "layers_unknown": 1}


def test_two_senders_in_one_process_do_not_meet(tmp_path: Path) -> None:
    store = Store()
    with (
        websocket_server(store) as url,
        sender(tmp_path, url, "a") as first,
        sender(tmp_path, url, "b") as second,
    ):
        for step in range(50):
            first.rows(rows(step, step + 1))
            second.rows(rows(step + 50, step + 51))
        assert first.flush(TIMEOUT_S)
        assert second.flush(TIMEOUT_S)
    assert told(store.frames["a"]) == list(range(50))
    assert told(store.frames["b"]) == list(range(50, 100))
    assert {said.session_id: said.session_ordinal for said in store.hellos} in (
        {"a": 0, "b": 1},
        {"a": 1, "b": 0},
    )


def test_fifty_rounds_leave_no_thread_and_no_file_open(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with websocket_server(Store()) as url:

        def one_round(index: int) -> None:
            with sender(tmp_path, url if index % 2 else NO_SERVER, f"s{index}") as one:
                one.rows(rows(0, 10))
                if index % 2:
                    assert one.flush(TIMEOUT_S)
                one.close(0.0)

        def ours() -> list[threading.Thread]:
            new = set(threading.enumerate()) - before
            return [thread for thread in new if thread.name.startswith("trainvitals")]

        one_round(1)
        files = len(os.listdir("/dev/fd"))
        for index in range(50):
            one_round(index)
        for thread in ours():
            thread.join(TIMEOUT_S)
        assert ours() == []
        gc.collect()
        assert len(os.listdir("/dev/fd")) <= files + 2  # the server's side may still be closing its last


def test_a_forgotten_sender_sends_the_rest_and_takes_its_thread_along(tmp_path: Path) -> None:
    store = Store()
    with websocket_server(store) as url:
        one = Sender(hello(), url=url, spool_dir=tmp_path, console=False)
        one.rows(rows(0, 100))
        one.bye("finished", 100)
        thread = one._life.thread
        assert thread is not None
        del one
        gc.collect()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert told(store.frames["s1"]) == list(range(100))
    assert list((tmp_path / "sessions").rglob("*.frames")) == []


class Cap:
    """What a server says that takes 20 series."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.refused = 0

    def __call__(self, frame: wire.ClientFrame) -> wire.Reject | None:
        if isinstance(frame, wire.Steps):
            if len(self.names | set(frame.columns)) > 20:
                self.refused += 1
                return wire.Reject(code="series_cap", message="20 series", seq=frame.seq)
            self.names.update(frame.columns)
        return None


def test_a_metric_that_is_named_by_its_step_costs_no_other_series(tmp_path: Path) -> None:
    store = Store()
    store.refuse = cap = Cap()
    with websocket_server(store) as url, sender(tmp_path, url) as one:
        for step in range(100):
            row = rows(step, step + 1)
            one.rows(Rows(row.steps, row.times, {**row.columns, f"metric_{step}": row.columns["loss"]}))
            one.event("message", step, {"text": "a frame for each"})
        assert one.flush(TIMEOUT_S)
        assert set(one.dropped) == {"series_cap"}
    assert told(store.frames["s1"]) == list(range(100))
    assert len(cap.names) == 20


def test_nor_does_it_where_many_steps_go_out_at_once(tmp_path: Path) -> None:
    store = Store()
    store.refuse = cap = Cap()
    with websocket_server(store) as url, sender(tmp_path, url) as one:
        for step in range(300):
            row = rows(step, step + 1)
            one.rows(Rows(row.steps, row.times, {**row.columns, f"metric_{step}": row.columns["loss"]}))
        assert one.flush(TIMEOUT_S)
    frames = store.frames["s1"]
    assert told(frames) == list(range(300))
    assert all("loss" in frame.columns for frame in frames if isinstance(frame, wire.Steps))
    assert not any(isinstance(frame, wire.Gap) for frame in frames)
    assert cap.refused <= 600  # what was sent before the first refusal was heard, not a try for each step


def test_closing_is_quick_when_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    with sender(tmp_path) as one:
        assert one.flush(0.0)
        one.close()
        one.close()
    assert list(tmp_path.iterdir()) == []


PRELUDE = """
import os, sys
from pathlib import Path
from client_rows import hello, rows
from trainvitals.sender import Sender
sender = Sender(hello(), url=sys.argv[1], spool_dir=Path(sys.argv[2]), console=False)
"""
# Python 3.12 starts no thread once it ends, and a link needs one: there the rest goes to the spool.
CONNECTED = """
sender.rows(rows(0, 1))
assert sender.flush(20.0)
"""


def python(code: str, url: str, folder: Path, prelude: str = PRELUDE) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-W", "ignore", "-c", prelude + code, url, str(folder)]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    return out


def test_a_program_that_just_ends_has_sent_everything(tmp_path: Path) -> None:
    store = Store()
    with websocket_server(store) as url:
        finish(python(CONNECTED + "for i in range(1, 200): sender.rows(rows(i, i + 1))", url, tmp_path))
    assert told(store.frames["s1"]) == list(range(200))


def test_a_program_that_ends_without_a_server_leaves_everything_to_sync(tmp_path: Path) -> None:
    finish(python("for i in range(200): sender.rows(rows(i, i + 1))", NO_SERVER, tmp_path))
    store = Store()
    (folder,) = (tmp_path / "sessions").glob("*/*")
    assert upload(folder, MemoryTransport(store.handler())).is_done
    assert told(store.frames["s1"]) == list(range(200))
    assert not folder.exists()


def test_a_goodbye_that_is_said_at_the_very_end_arrives(tmp_path: Path) -> None:
    code = """
import atexit
atexit.register(lambda: sender.bye("interrupted", 7))
sender = Sender(hello(), url=sys.argv[1], spool_dir=Path(sys.argv[2]), console=False)
sender.rows(rows(0, 1))
assert sender.flush(20.0)
sender.rows(rows(1, 8))
"""
    store = Store()
    with websocket_server(store) as url:
        finish(python(code, url, tmp_path, prelude=PRELUDE.rpartition("sender =")[0]))
    assert told(store.frames["s1"]) == list(range(8))
    assert isinstance(store.frames["s1"][-1], wire.Bye)


def test_what_a_program_forgot_before_its_end_arrives_too(tmp_path: Path) -> None:
    store = Store()
    with websocket_server(store) as url:
        finish(python(CONNECTED + "sender.rows(rows(1, 200)); del sender", url, tmp_path))
    assert told(store.frames["s1"]) == list(range(200))


def test_a_forked_child_sends_nothing_and_its_parent_everything(tmp_path: Path) -> None:
    code = """
sender.rows(rows(1, 5))
pid = os.fork()
if pid == 0:
    sender.rows(rows(1000, 1005))
    print("child", sender.flush(1.0), flush=True)
    sender.close()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
sender.rows(rows(5, 10))
"""
    store = Store()
    with websocket_server(store) as url:
        assert finish(python(CONNECTED + code, url, tmp_path)) == "child True\n"
    assert told(store.frames["s1"]) == list(range(10))


def test_what_a_killed_program_had_spooled_arrives_with_sync(tmp_path: Path) -> None:
    code = """
for i in range(300): sender.rows(rows(i, i + 1))
assert not sender.flush(20.0)
print("spooled", flush=True)
for i in range(300, 10**9): sender.rows(rows(i, i + 1))
"""
    process = python(code, NO_SERVER, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "spooled\n"
    (folder,) = (tmp_path / "sessions").glob("*/*")
    assert "a running process still writes there" in str(upload(folder, MemoryTransport(Store().handler())))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)
    store = Store()
    assert upload(folder, MemoryTransport(store.handler())).is_done
    arrived = told(store.frames["s1"])
    assert len(arrived) >= 300
    assert arrived == list(range(len(arrived)))
    assert store.hellos[0].late
