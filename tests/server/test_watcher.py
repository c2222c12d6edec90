from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

import pytest

from client_frames import hello, steps
from trainvitals import wire
from trainvitals_server.detector import save_changes
from trainvitals_server.finding import Kind, Severity
from trainvitals_server.incident import Incident
from trainvitals_server.liveness import LOST_S
from trainvitals_server.store import lives, runs, streams
from trainvitals_server.store.database import Database
from trainvitals_server.store.incidents import list_incidents
from trainvitals_server.store.runs import StreamKey
from trainvitals_server.watcher import DETECTOR_S, RECONNECT_S, Sign, judge

T = TypeVar("T")
TIMEOUT_S = 20.0
NOW = 1_700_000_000.0
KEY = StreamKey("run", 0, "s1")


class Watched:
    """A database whose sessions are judged at chosen times."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path)
        self.signs: dict[StreamKey, Sign] = {}
        self.started_at = NOW - 3600.0
        self.alerts: list[tuple[str, str]] = []

    def do(self, job: Callable[[Connection], T]) -> T:
        return self.database.write(job).result(TIMEOUT_S)

    def open(self, frame: wire.Hello, at: float = NOW) -> None:
        self.do(lambda c: runs.upsert_hello(c, frame, at))

    def append(self, *frames: wire.Sequenced, at: float = NOW, key: StreamKey = KEY) -> None:
        self.do(lambda c: runs.append_frames(c, *key, frames, at))

    def promise(self, until: float) -> None:
        self.do(lambda c: runs.keep_promise(c, KEY, until, NOW))

    def judge(self, at: float) -> list[tuple[str, str, str]]:
        """Judge at `at`, store what comes of it, and return kind, severity and state of each change."""
        judgement = self.database.read(lambda c: judge(c, self.signs, self.started_at, at))
        self.do(lambda c: lives.save_states(c, judgement.states))
        changed = self.do(lambda c: save_changes(c, judgement.changed, self.enqueue, at))
        return [(incident.kind, incident.severity, incident.state) for incident, _ in changed]

    def enqueue(self, _connection: Connection, incident: Incident, change: str, _now: float) -> None:
        self.alerts.append((incident.kind, change))

    def fold(self, seq: int) -> None:
        """Say that the detector has seen the frames of the session up to `seq`."""
        self.do(lambda c: streams.save_fold(c, KEY.run_id, b"", {streams.stream_name(0, "s1"): seq}))

    def found(self, kind: Kind, severity: Severity) -> None:
        """Store what the detector says of the last step."""
        incident = Incident(id="1", run_id="run", kind=kind, severity=severity, onset_step=2, detected_step=2,
                            session_id="s1", why=["the loss is NaN"])  # fmt: skip
        self.do(lambda c: save_changes(c, [incident], self.enqueue, NOW))

    def state(self) -> str:
        return str(self.do(lambda c: c.execute("SELECT state FROM run").fetchone()[0]))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    opened = Watched(tmp_path / "test.db")
    opened.open(hello())
    opened.append(steps(1, 0, [1.0, 2.0, 3.0]))
    opened.promise(NOW + 30.0)
    yield opened
    opened.database.close()


def test_a_promise_that_is_kept_says_nothing(watched: Watched) -> None:
    assert watched.judge(NOW + 29.0) == []
    assert watched.state() == "running"


def test_a_broken_promise_is_a_stall_and_the_next_frame_ends_it(watched: Watched) -> None:
    assert watched.judge(NOW + 60.0) == [("run_stalled", "warning", "open")]
    assert watched.state() == "stalled"
    assert watched.judge(NOW + 62.0) == [], "it is said once"
    watched.append(steps(2, 3, [1.0]), at=NOW + 70.0)
    assert watched.state() == "running"
    watched.promise(NOW + 100.0)
    assert watched.judge(NOW + 71.0) == [("run_stalled", "warning", "resolved")]
    assert watched.alerts == [("run_stalled", "new"), ("run_stalled", "resolved")]


def test_a_lost_connection_and_a_broken_promise_are_a_crash(watched: Watched) -> None:
    watched.signs[KEY] = Sign(NOW, is_connected=False)
    assert watched.judge(NOW + 29.0) == []
    assert watched.judge(NOW + 60.0) == [("run_crashed", "critical", "open")]
    assert watched.state() == "crashed"


def test_what_was_heard_but_could_not_be_stored_counts(watched: Watched) -> None:
    watched.signs[KEY] = Sign(NOW + 59.0, promised_at=NOW + 120.0, is_connected=True)
    assert watched.judge(NOW + 100.0) == []


def test_a_connection_that_is_gone_for_long_is_a_stall_whatever_was_promised(watched: Watched) -> None:
    watched.signs[KEY] = sign = Sign(NOW, promised_at=NOW + 600.0, is_connected=False, left_at=NOW)
    assert watched.judge(NOW + LOST_S) == [], "it may come back"
    assert watched.judge(NOW + LOST_S + 1.0) == [("run_stalled", "warning", "open")]
    sign.is_connected = True
    assert watched.judge(NOW + 100.0) == [("run_stalled", "warning", "resolved")]
    sign.is_connected = False
    assert watched.judge(NOW + 616.0)[0][0] == "run_crashed"


def test_a_short_promise_takes_the_place_of_a_long_one_that_is_stored(watched: Watched) -> None:
    watched.promise(NOW + 600.0)
    watched.signs[KEY] = Sign(NOW + 10.0, promised_at=NOW + 25.0, is_connected=False)
    assert watched.judge(NOW + 45.0) == [("run_crashed", "critical", "open")]


def test_after_a_start_clients_have_time_to_come_back(watched: Watched) -> None:
    watched.started_at = NOW + 10_000.0
    assert watched.judge(watched.started_at + 5.0) == []
    assert watched.judge(watched.started_at + RECONNECT_S - 1.0) == []
    late = watched.started_at + RECONNECT_S + 20.0
    assert watched.judge(late) == [("run_stalled", "warning", "open")]


def test_who_has_come_back_after_a_start_is_judged_by_what_it_promised(watched: Watched) -> None:
    watched.started_at = NOW - 5.0
    watched.signs[KEY] = Sign(NOW, promised_at=NOW + 15.0, is_connected=False)
    assert watched.judge(NOW + 35.0) == [("run_crashed", "critical", "open")]


def test_a_session_that_promised_nothing_has_a_minute(watched: Watched) -> None:
    watched.append(wire.Bye(seq=2, status="finished"))
    watched.open(hello("other"))
    assert watched.judge(NOW + 70.0) == []
    assert watched.judge(NOW + 80.0) == [("run_stalled", "warning", "open")]


def test_a_session_that_was_started_again_is_over(watched: Watched) -> None:
    watched.signs[KEY] = Sign(NOW, is_connected=False)
    watched.judge(NOW + 60.0)
    watched.open(hello(session_id="s2", session_ordinal=1), at=NOW + 61.0)
    assert watched.judge(NOW + 62.0) == [("run_crashed", "critical", "resolved")]
    assert watched.state() == "running"


def test_a_bye_with_an_error_is_told_with_it_and_names_the_checkpoint(watched: Watched) -> None:
    checkpoint = wire.Event(seq=2, step=2, kind="checkpoint", data={"path": "x"})
    watched.append(checkpoint, wire.Bye(seq=3, status="failed", step=2, error="ValueError: boom"))
    watched.fold(3)
    assert watched.judge(NOW + 1.0) == [("run_crashed", "critical", "open")]
    (incident,) = watched.do(lambda c: list_incidents(c, "run"))
    assert "ValueError: boom" in incident.verdict
    assert incident.weights.last_checkpoint_step == 2
    assert watched.state() == "failed"


def test_a_failure_waits_until_the_detector_has_seen_the_last_rows(watched: Watched) -> None:
    watched.append(wire.Bye(seq=2, status="failed", step=2, error="ValueError: boom"))
    watched.fold(1)
    assert watched.judge(NOW + 1.0) == []
    assert watched.judge(NOW + DETECTOR_S + 1.0) == [("run_crashed", "critical", "open")]


def test_a_failure_after_a_critical_incident_is_told_with_it_and_pages_nobody_again(watched: Watched) -> None:
    watched.found("sudden_nan", "critical")
    watched.append(wire.Bye(seq=2, status="failed", step=2, error="ValueError: NaN loss"))
    watched.fold(2)
    assert watched.judge(NOW + 1.0) == [("sudden_nan", "critical", "open")]
    assert watched.judge(NOW + 3.0) == [], "it is said once"
    (incident,) = watched.do(lambda c: list_incidents(c, "run"))
    assert incident.findings[-1].kind == "run_crashed"
    assert "ValueError: NaN loss" in incident.why[-1]
    assert watched.alerts == [("sudden_nan", "new"), ("sudden_nan", "updated")]


@pytest.mark.parametrize("status", ["finished", "interrupted", "stopped"])
def test_a_session_that_said_bye_is_not_missed(watched: Watched, status: str) -> None:
    watched.append(wire.Bye(seq=2, status=status))  # type: ignore[arg-type]
    assert watched.judge(NOW + 500.0) == []


def test_an_old_spool_that_is_uploaded_is_nobody_to_wait_for(watched: Watched) -> None:
    watched.append(wire.Bye(seq=2, status="finished"))
    watched.open(hello("late", late=True))
    assert watched.judge(NOW + 500.0) == []


def test_a_run_goes_on_while_one_of_its_ranks_does(watched: Watched) -> None:
    watched.open(hello(rank=1, world_size=2), at=NOW + 55.0)
    assert watched.judge(NOW + 60.0) == [("run_stalled", "warning", "open")]
    assert watched.state() == "running"
