from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from alert_samples import at_stake
from client_frames import hello
from trainvitals_server.finding import Evidence
from trainvitals_server.incident import Incident
from trainvitals_server.store import runs
from trainvitals_server.store.database import Database
from trainvitals_server.store.incidents import Change, find_incident, list_incidents, save_incident
from trainvitals_server.store.summaries import find_run

TIMEOUT_S = 20.0
NOW = 1_700_000_000.0
SPIKE = Incident(
    id="a",
    run_id="run",
    kind="loss_spike",
    severity="warning",
    onset_step=10,
    detected_step=12,
    evidence=[Evidence(text="a NaN", value=math.nan)],
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "test.db")
    opened.write(lambda c: runs.upsert_hello(c, hello(), NOW)).result(TIMEOUT_S)
    yield opened
    opened.close()


def save(database: Database, incident: Incident) -> Change:
    return database.write(lambda c: save_incident(c, incident, NOW)).result(TIMEOUT_S)


def test_an_incident_is_new_once_however_often_it_is_said(database: Database) -> None:
    assert [save(database, SPIKE) for _ in range(3)] == ["new", "unchanged", "unchanged"]


def test_each_change_has_its_name(database: Database) -> None:
    life = [
        SPIKE,
        replace(SPIKE, revision=2, verdict="more"),
        replace(SPIKE, revision=3, severity="critical"),
        replace(SPIKE, revision=4, severity="critical", state="resolved"),
        replace(SPIKE, revision=5, severity="critical", state="resolved", verdict="after all"),
        replace(SPIKE, revision=6, severity="critical"),
        replace(SPIKE, revision=7, severity="critical", state="withdrawn"),
    ]
    said = [save(database, incident) for incident in life]
    assert said == ["new", "updated", "escalated", "resolved", "updated", "escalated", "resolved"]


def test_more_at_stake_is_a_change_of_its_own(database: Database) -> None:
    calm = at_stake(replace(SPIKE, severity="critical"), usable=True)
    sinking = at_stake(calm, sinks=True, usable=True)
    life = [calm, replace(sinking, revision=2), replace(sinking, revision=3), replace(calm, revision=4)]
    assert [save(database, incident) for incident in life] == ["new", "worsened", "updated", "updated"]


def test_an_older_revision_is_news_of_yesterday(database: Database) -> None:
    resolved = replace(SPIKE, revision=3, state="resolved")
    save(database, resolved)
    assert save(database, replace(SPIKE, revision=2)) == "unchanged"
    found = database.read(lambda c: find_incident(c, "run", "a"))
    assert found is not None
    assert (found.state, found.revision) == ("resolved", 3)


def test_incidents_are_listed_in_order_of_detection_with_their_nans(database: Database) -> None:
    for name, step in (("late", 30), ("early", 5), ("middle", 20)):
        save(database, replace(SPIKE, id=name, detected_step=step))
    found = database.read(lambda c: list_incidents(c, "run"))
    assert [incident.id for incident in found] == ["early", "middle", "late"]
    value = found[0].evidence[0].value
    assert value is not None
    assert math.isnan(value)


def test_the_worst_is_open_before_severe_before_early(database: Database) -> None:
    def worst() -> str:
        incident = database.read(lambda c: find_run(c, "run")).worst_incident
        assert incident is not None
        return incident.id

    save(database, replace(SPIKE, id="over", severity="critical", state="resolved"))
    assert worst() == "over"
    save(database, replace(SPIKE, id="mild", severity="info"))
    assert worst() == "mild"
    save(database, replace(SPIKE, id="later", severity="critical", detected_step=50))
    save(database, replace(SPIKE, id="sooner", severity="critical", detected_step=40))
    assert worst() == "sooner"
    save(database, replace(SPIKE, id="sooner", severity="critical", state="withdrawn", revision=2))
    assert worst() == "later"


def test_what_came_late_is_the_worst_only_where_there_is_nothing_else(database: Database) -> None:
    def worst() -> str | None:
        incident = database.read(lambda c: find_run(c, "run")).worst_incident
        return None if incident is None else incident.id

    save(database, replace(SPIKE, id="old", severity="critical", late=True))
    assert worst() == "old"
    save(database, replace(SPIKE, id="fresh", severity="info"))
    assert worst() == "fresh"
