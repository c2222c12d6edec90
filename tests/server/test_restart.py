"""The server is killed in mid-run, again and again, under a real sender: nothing is lost, nothing doubled."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from server_process import ServerProcess
from trainvitals import wire
from trainvitals.rows import Rows
from trainvitals.sender import Sender
from trainvitals.transport import Deliver, Link, NetworkTransport
from trainvitals_server import codec
from trainvitals_server.incident import Incident
from trainvitals_server.series import Points
from trainvitals_server.store.database import Database
from trainvitals_server.store.incidents import list_incidents
from trainvitals_server.store.reading import read_rows

ROUNDS = 20
STEPS_PER_ROUND = 120
TIMEOUT_S = 60.0
HURT = Path(__file__).with_name("hurt_server.py")


class Recorder:
    """A network transport that knows what its present link has sent and what was acknowledged."""

    def __init__(self, url: str) -> None:
        self.sent = self.acked = 0
        self._network = NetworkTransport(url)
        self._news = threading.Condition()

    def link(self) -> Link:
        with self._news:
            self.sent = 0
        return RecordedLink(self, self._network.link())

    def note(self, *, sent: int = 0, acked: int = 0) -> None:
        with self._news:
            self.sent, self.acked = max(self.sent, sent), max(self.acked, acked)
            self._news.notify_all()

    def wait_for(self, condition: Callable[[Recorder], bool]) -> None:
        with self._news:
            assert self._news.wait_for(lambda: condition(self), TIMEOUT_S), (self.sent, self.acked)


class RecordedLink:
    def __init__(self, recorder: Recorder, link: Link) -> None:
        self._recorder, self._link = recorder, link

    def run(self, hello: bytes, deliver: Deliver) -> None:
        def hear(message: bytes) -> None:
            frame = wire.decode_server(message)
            if isinstance(frame, wire.Welcome | wire.Ack):
                self._recorder.note(acked=frame.acked_seq)
            deliver(message)

        self._link.run(hello, hear)

    def send(self, frames: Sequence[bytes]) -> None:
        self._link.send(frames)
        for data in frames:
            frame = wire.decode_client(data)
            if not isinstance(frame, wire.Hello | wire.Heartbeat):
                self._recorder.note(sent=frame.seq)

    def close(self, *, abrupt: bool = False) -> None:
        self._link.close(abrupt=abrupt)


class Told(NamedTuple):
    """What a database says of the run."""

    loss: Points
    grad_norm: Points
    incidents: list[Incident]


def training() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return loss, gradient norm and where the latter is present, of a run in which much goes wrong."""
    random = np.random.default_rng(7)
    steps = np.arange(ROUNDS * STEPS_PER_ROUND)
    loss = 2.0 * np.exp(-steps / 500.0) + 0.5 + 0.02 * random.standard_normal(len(steps))
    norm = 1.0 + 0.1 * random.standard_normal(len(steps))
    loss[700:705] += [30.0, 20.0, 10.0, 5.0, 2.0]  # a spike that recovers
    norm[700] = 80.0
    loss[1500:2100] *= np.exp(np.arange(600) / 90.0)  # a slow divergence
    norm[1500:2100] *= np.exp(np.arange(600) / 90.0)
    loss[2100:2200], loss[2200:] = np.inf, np.nan
    norm[2090:2200], norm[2200:] = -np.inf, np.nan
    present = random.random(len(steps)) < 0.9
    return loss, norm, present


def rows(start: int, stop: int) -> Rows:
    loss, norm, present = training()
    return Rows(
        np.arange(start, stop),
        1_700_000_000.0 + np.arange(start, stop, dtype=float),
        {"loss": (loss[start:stop], None), "grad_norm": (norm[start:stop], present[start:stop])},
    )


def read(data: Path) -> Told:
    with closing(Database(data / "trainvitals.db")) as database:
        series = database.read(lambda c: read_rows(c, "run", ["loss", "grad_norm"], 0, 1 << 40))
        incidents = database.read(lambda c: list_incidents(c, "run"))
    loss, norm = series["loss"].rows, series["grad_norm"].rows
    assert isinstance(loss, Points)
    assert isinstance(norm, Points)
    return Told(loss, norm, incidents)


def undisturbed(data: Path, spool: Path) -> Told:
    server = ServerProcess(data)
    server.start()
    sender = Sender(wire.Hello(run_id="run", session_id="s"), url=server.url, spool_dir=spool, console=False)
    for start in range(0, ROUNDS * STEPS_PER_ROUND, STEPS_PER_ROUND):
        sender.rows(rows(start, start + STEPS_PER_ROUND))
    sender.bye("finished", ROUNDS * STEPS_PER_ROUND - 1)
    sender.close(TIMEOUT_S)
    assert server.stop() == 0
    return read(data)


def spelled(incident: Incident) -> str:
    """Return it as text, in which a NaN is equal to another."""
    return codec.dumps(incident).decode()


class Disturbed:
    """One run under a server that is killed in every round."""

    def __init__(self, data: Path, spool: Path) -> None:
        self.data = data
        self.server = ServerProcess(data)
        self.server.start()
        self.recorder = Recorder(self.server.url)
        hello = wire.Hello(run_id="run", session_id="s")
        url, transport = self.server.url, self.recorder
        self.sender = Sender(hello, url=url, transport=transport, spool_dir=spool, console=False)
        self.in_flight: list[int] = []
        self.not_acked: list[int] = []

    def send(self, start: int, stop: int) -> None:
        """Send rows, in several frames."""
        for first in range(start, stop, 10):
            self.sender.rows(rows(first, min(first + 10, stop)))

    def kill_in_flight(self, start: int, stop: int) -> None:
        """Kill the server when frames have left the client that it will not acknowledge any more."""
        before, half = self.recorder.acked, (start + stop) // 2
        self.send(start, half)
        self.recorder.wait_for(lambda recorder: recorder.acked > before)
        self.server.send_signal(signal.SIGSTOP)
        self.send(half, stop)
        self.recorder.wait_for(lambda recorder: recorder.sent > recorder.acked)
        self.in_flight.append(self.recorder.sent - self.recorder.acked)
        self.server.kill()
        self.server.start()

    def kill_after_commit(self, start: int, stop: int) -> None:
        """Let the server kill itself between the commit and the ack of the first frames it gets."""
        assert self.server.stop() == 0
        launcher = [str(HURT), "die=1", "serve"]
        deadly = ServerProcess(self.data, launcher=launcher, port=self.server.port)
        deadly.start()
        self.send(start, stop)
        assert deadly.wait() == -signal.SIGKILL
        committed = int(deadly.lines[-1].removeprefix("committed up to "))
        self.not_acked.append(committed - self.recorder.acked)
        self.in_flight.append(committed - self.recorder.acked)
        self.server.start()

    def finish(self) -> Told:
        self.sender.bye("finished", ROUNDS * STEPS_PER_ROUND - 1)
        self.sender.close(TIMEOUT_S)
        assert self.sender.dropped == {}
        assert self.server.stop() == 0
        return read(self.data)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_twenty_kills_lose_and_double_neither_a_step_nor_an_incident(tmp_path: Path) -> None:
    calm = undisturbed(tmp_path / "calm", tmp_path / "calm-spool")
    run = Disturbed(tmp_path / "data", tmp_path / "spool")
    for number in range(ROUNDS):
        start = number * STEPS_PER_ROUND
        kill = run.kill_after_commit if number % 3 == 1 else run.kill_in_flight
        kill(start, start + STEPS_PER_ROUND)
    told = run.finish()

    sys.stdout.write(f"frames in flight at each of {ROUNDS} kills: {run.in_flight}\n")
    sys.stdout.write(f"committed and not acked, in {len(run.not_acked)} rounds: {run.not_acked}\n")
    assert len(run.in_flight) == ROUNDS
    assert min(run.in_flight) > 0
    assert len(run.not_acked) >= 5
    assert min(run.not_acked) > 0
    loss, norm, present = training()
    for found in (calm, told):
        assert np.array_equal(found.loss.steps, np.arange(ROUNDS * STEPS_PER_ROUND))
        assert found.loss.values.tobytes() == loss.tobytes()
        assert found.loss.present.all()
        assert np.array_equal(found.grad_norm.present, present)
        assert found.grad_norm.values[present].tobytes() == norm[present].tobytes()
    assert {"loss_spike", "gradual_divergence"} <= {incident.kind for incident in calm.incidents}
    assert list(map(spelled, told.incidents)) == list(map(spelled, calm.incidents))
