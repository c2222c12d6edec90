"""What the board and the run page say of a run, in the fields of the REST interface."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from trainvitals.wire import Environment, Layer, Layout
from trainvitals_server.errors import NotFound
from trainvitals_server.finding import Kind, Severity
from trainvitals_server.incident import Incident, IncidentState

PAGE = 200  # runs of one answer

_COLUMNS = (
    "run_id, project, run_group, name, tags, notes, state, created_at, last_seen_at, last_step, stop_reason"
)
# Worst first: what is open before what is over, then by severity, then the earliest.
_WORST = (
    "SELECT payload FROM incident WHERE run_id = ? AND state != 'withdrawn' ORDER BY state != 'open',"
    " CASE severity WHEN 'critical' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END, detected_step"
)


class WorstIncident(msgspec.Struct, frozen=True, kw_only=True):
    """The one incident that the board shows of a run."""

    id: str
    kind: Kind
    severity: Severity
    state: IncidentState
    onset_step: int
    detected_step: int
    verdict: str


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the board. `steps_per_s` is of the last seconds, None where nothing comes in."""

    run_id: str
    project: str
    group: str | None
    name: str | None
    tags: list[str]
    notes: str
    state: str
    started_at: float
    last_seen_at: float
    last_step: int | None
    stop_requested: bool
    open_incidents: int
    worst_incident: WorstIncident | None
    steps_per_s: float | None = None


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a reporting process; `status` is that of its Bye, None while it lives or died unheard."""

    session_id: str
    rank: int
    ordinal: int
    resume_step: int | None
    late: bool
    started_at: float
    last_step: int | None
    last_seen_at: float
    status: str | None


class RunDetail(RunSummary, frozen=True, kw_only=True):
    """What the run page shows beside its charts."""

    environment: Environment
    layers: list[Layer]
    sessions: list[SessionSummary]
    series: list[str]
    layer_series: list[str]


def find_summaries(connection: sqlite3.Connection, run_ids: Sequence[str]) -> list[RunSummary]:
    """Return the summaries of those of `run_ids` that exist."""
    rows = [
        connection.execute(f"SELECT {_COLUMNS} FROM run WHERE run_id = ?", (run_id,)).fetchone()
        for run_id in run_ids
    ]
    return [_summary(connection, row) for row in rows if row is not None]


def find_run(connection: sqlite3.Connection, run_id: str) -> RunDetail:
    """Return one run with its environment, layers, sessions and the names of its series.

    Raises:
        NotFound: if there is no such run.
    """
    found = find_summaries(connection, [run_id])
    if not found:
        raise NotFound(f"there is no run {run_id!r}")
    names = connection.execute(
        "SELECT name, per_layer FROM series WHERE run_id = ? ORDER BY name", (run_id,)
    ).fetchall()
    return RunDetail(
        **msgspec.structs.asdict(found[0]),
        environment=_environment(connection, run_id),
        layers=_layers(connection, run_id),
        sessions=_sessions(connection, run_id),
        series=[name for name, per_layer in names if not per_layer],
        layer_series=[name for name, per_layer in names if per_layer],
    )


def _summary(connection: sqlite3.Connection, row: Sequence[object]) -> RunSummary:
    run_id, project, group, name, tags, notes, state, created_at, seen_at, step, stop_reason = row
    (count,) = connection.execute(
        "SELECT count(*) FROM incident WHERE run_id = ? AND state = 'open'", (run_id,)
    ).fetchone()
    return msgspec.convert(
        {
            "run_id": run_id,
            "project": project,
            "group": group,
            "name": name,
            "tags": msgspec.json.decode(str(tags)),
            "notes": notes,
            "state": state,
            "started_at": created_at,
            "last_seen_at": seen_at,
            "last_step": step,
            "stop_requested": stop_reason is not None,
            "open_incidents": count,
            "worst_incident": _worst(connection, str(run_id)),
        },
        RunSummary,
        from_attributes=True,
    )


def _worst(connection: sqlite3.Connection, run_id: str) -> WorstIncident | None:
    """Return the worst incident; what an old spool brought late counts only where there is nothing else."""
    late = None
    for (payload,) in connection.execute(_WORST, (run_id,)):
        incident = msgspec.msgpack.decode(payload, type=Incident)
        if not incident.late:
            return msgspec.convert(incident, WorstIncident, from_attributes=True)
        late = late or incident
    return None if late is None else msgspec.convert(late, WorstIncident, from_attributes=True)


def _environment(connection: sqlite3.Connection, run_id: str) -> Environment:
    (data,) = connection.execute("SELECT environment FROM run WHERE run_id = ?", (run_id,)).fetchone()
    return msgspec.msgpack.decode(data, type=Environment)


def _layers(connection: sqlite3.Connection, run_id: str) -> list[Layer]:
    row = connection.execute(
        "SELECT payload FROM frame JOIN session USING (run_id, rank, session_id)"
        " WHERE run_id = ? AND kind = 'layout' ORDER BY ordinal DESC, rank, seq DESC LIMIT 1",
        (run_id,),
    ).fetchone()
    return msgspec.msgpack.decode(row[0], type=Layout).layers if row else []


def _sessions(connection: sqlite3.Connection, run_id: str) -> list[SessionSummary]:
    rows = connection.execute(
        "SELECT session_id, rank, ordinal, resume_step, late, started_at, last_step, last_seen_at, status"
        " FROM session WHERE run_id = ? ORDER BY ordinal, rank",
        (run_id,),
    ).fetchall()
    fields = SessionSummary.__struct_fields__
    return [
        msgspec.convert(dict(zip(fields, row, strict=True)), SessionSummary, strict=False) for row in rows
    ]
