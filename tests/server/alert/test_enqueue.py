"""What a saved incident leaves in the outbox, in the transaction that saved it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from alert_samples import INCIDENT, SINKING_TEXT, add_run_and_endpoint, at_stake, endpoint
from trainvitals_server.alert.message import Message
from trainvitals_server.alert.policy import STORM_LIMITS, STORM_WINDOW_S
from trainvitals_server.incident import Incident
from trainvitals_server.store import outbox
from trainvitals_server.store.alerts import enqueue_alerts, list_alerts
from trainvitals_server.store.database import Database, migrate

WARNING = replace(INCIDENT, severity="warning")


@pytest.fixture
def c() -> Iterator[sqlite3.Connection]:
    connection = _memory()
    yield connection
    connection.close()


def _memory() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    migrate(connection)
    add_run_and_endpoint(connection, endpoint())
    return connection


def _events(c: sqlite3.Connection) -> list[str]:
    return [event for (event,) in c.execute("SELECT event FROM outbox WHERE outcome IS NULL ORDER BY rowid")]


def _messages(c: sqlite3.Connection) -> list[Message]:
    bodies = c.execute("SELECT body FROM outbox WHERE outcome IS NULL ORDER BY rowid")
    return [msgspec.msgpack.decode(body, type=Message) for (body,) in bodies]


def _stories(c: sqlite3.Connection) -> Iterator[str]:
    """Yield the events; what was told only when it was over is a whole story."""
    for event, body in c.execute("SELECT event, body FROM outbox WHERE outcome IS NULL ORDER BY rowid"):
        yield event
        incident = msgspec.msgpack.decode(body, type=Message).incident
        if event == "incident.opened" and incident is not None and incident.state == "resolved":
            yield "incident.resolved"


def _numbered(incident: Incident, number: int) -> Incident:
    return replace(incident, id=f"inc{number}")


def test_a_transaction_that_fails_leaves_no_message(tmp_path: Path) -> None:
    def save(connection: sqlite3.Connection) -> None:
        add_run_and_endpoint(connection, endpoint())
        enqueue_alerts(connection, INCIDENT, "new", 1.0)
        raise ValueError("the incident could not be saved")

    database = Database(tmp_path / "alerts.db")
    with pytest.raises(ValueError, match="could not be saved"):
        database.write(save).result()
    assert database.read(_events) == []
    database.close()


def test_saving_an_incident_twice_sends_one_message(c: sqlite3.Connection) -> None:
    assert [enqueue_alerts(c, INCIDENT, change, 1.0) for change in ("new", "updated", "unchanged")] == [
        1,
        0,
        0,
    ]


def test_each_endpoint_is_told_of_news_once_and_what_is_new(c: sqlite3.Connection) -> None:
    good, sinking = at_stake(INCIDENT, usable=True), at_stake(INCIDENT, sinks=True, usable=True)
    lost = at_stake(INCIDENT, sinks=True, usable=False)
    life = [good, sinking, sinking, lost, good, sinking, lost]
    assert [enqueue_alerts(c, incident, "updated", 1.0) for incident in life] == [1, 1, 0, 1, 0, 0, 0]
    told = [(message.event, message.text) for message in _messages(c)]
    assert told == [
        ("incident.opened", ""),
        ("incident.updated", SINKING_TEXT),
        ("incident.updated", "the weights are not usable any more"),
    ]


def test_what_an_opening_says_is_no_news_afterwards(c: sqlite3.Connection) -> None:
    sinking = at_stake(INCIDENT, sinks=True, usable=True)
    assert [enqueue_alerts(c, sinking, change, 1.0) for change in ("new", "updated")] == [1, 0]


def test_each_endpoint_hears_from_its_own_severity_on(c: sqlite3.Connection) -> None:
    add_run_and_endpoint(c, endpoint(endpoint_id="hook2", min_severity="critical"))
    assert enqueue_alerts(c, WARNING, "new", 1.0) == 1
    assert enqueue_alerts(c, INCIDENT, "escalated", 30.0) == 2
    told = {(alert["webhook_id"], alert["state"], alert["severity"]) for alert in list_alerts(c, "run1", 10)}
    assert told == {("hook1", "firing", "critical"), ("hook2", "firing", "critical")}
    assert _events(c) == ["incident.opened", "incident.escalated", "incident.opened"]


def test_a_paused_endpoint_is_told_nothing(c: sqlite3.Connection) -> None:
    add_run_and_endpoint(c, endpoint(disabled_at=1.0, disabled_why="paused"))
    assert enqueue_alerts(c, INCIDENT, "new", 1.0) == 0


def test_a_message_is_about_the_run_by_its_names(c: sqlite3.Connection) -> None:
    enqueue_alerts(c, INCIDENT, "new", 1.0)
    (claim,) = outbox.claim_due(c, 1.0, lease_s=10.0, limit=16, busy=[])
    assert claim.message.run is not None
    assert (claim.message.run.project, claim.message.run.name) == ("resnet", "lr 3e-4")


@pytest.mark.parametrize("severity", ["warning", "critical"])
def test_a_storm_ends_in_one_notice_and_calm_ends_the_silence(severity: str, c: sqlite3.Connection) -> None:
    incident = replace(INCIDENT, severity=severity)
    limit = STORM_LIMITS[incident.severity]
    for number in range(limit + 10):
        enqueue_alerts(c, _numbered(incident, number), "new", 1.0)
    assert Counter(_events(c)) == {"incident.opened": limit, "alerts.capped": 1}
    enqueue_alerts(c, _numbered(incident, 1000), "new", 1.0 + STORM_WINDOW_S)
    assert _events(c)[-1] == "incident.opened"


def test_the_end_of_what_a_storm_silenced_is_not_told(c: sqlite3.Connection) -> None:
    for number in range(STORM_LIMITS["warning"] + 1):
        enqueue_alerts(c, _numbered(WARNING, number), "new", 1.0)
    silenced = replace(_numbered(WARNING, STORM_LIMITS["warning"]), state="resolved")
    assert enqueue_alerts(c, silenced, "resolved", 30.0) == 0


def test_deleting_the_run_forgets_its_alerts(c: sqlite3.Connection) -> None:
    enqueue_alerts(c, INCIDENT, "new", 1.0)
    c.execute("DELETE FROM run")
    assert list_alerts(c, None, 10) == []


_stakes = st.lists(st.tuples(st.booleans(), st.sampled_from([None, True, False])), max_size=30)


@given(_stakes)
def test_however_an_incident_turns_it_is_updated_twice_at_most(turns: list[tuple[bool, bool | None]]) -> None:
    """There are two things that can come to be at stake here."""
    c = _memory()
    enqueue_alerts(c, INCIDENT, "new", 1.0)
    for sinks, usable in turns:
        enqueue_alerts(c, at_stake(INCIDENT, sinks=sinks, usable=usable), "updated", 1.0)
    assert _events(c).count("incident.updated") <= 2
    c.close()


_lives = st.lists(
    st.tuples(
        st.sampled_from(["info", "warning", "critical"]),
        st.sampled_from(["open", "resolved", "withdrawn"]),
        st.sampled_from([0.0, 3.0, 10.0, 700.0]),
    ),
    max_size=12,
)


@given(_lives)
def test_whatever_becomes_of_an_incident_the_messages_make_sense(life: list[tuple[str, str, float]]) -> None:
    """What is told begins with an opening, grows worse at most once, and is told to be over at most once."""
    c = _memory()
    now = 0.0
    for revision, (severity, state, pause_s) in enumerate(life, start=1):
        incident = replace(INCIDENT, severity=severity, state=state, revision=revision)
        enqueue_alerts(c, incident, "updated", now)
        now += pause_s
    told = "".join({"opened": "o", "escalated": "e", "resolved": "r"}[event[9:]] for event in _stories(c))
    c.close()
    stories = told.replace("or", "").replace("oer", "")
    assert stories in ("", "o", "oe"), told
