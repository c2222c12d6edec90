"""Board: the runs that match, each with its counts of incidents and a small curve of its loss."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from trainvitals_server.answer import tell_series
from trainvitals_server.errors import NotFound
from trainvitals_server.store.reading import read_series, snapshot
from trainvitals_server.store.summaries import PAGE, RunSummary, find_summaries

SPARKLINE_SERIES = "loss"
SPARKLINE_PIXELS = 60


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs are wanted; None leaves a field open. `text` may stand in any name, tag or id."""

    project: str | None = None
    group: str | None = None
    state: str | None = None
    tag: str | None = None
    text: str | None = None


class IncidentCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Incidents of a run that were not withdrawn: those still open, and all by severity."""

    open: int = 0
    critical: int = 0
    warning: int = 0
    info: int = 0


class BoardRun(RunSummary, frozen=True, kw_only=True):
    """One row of the board, in the fields of the REST interface; `sparkline` is its loss, as a series."""

    incidents: IncidentCounts
    sparkline: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class BoardPage:
    """Some of the runs that match, the newest first, and how many match."""

    runs: list[BoardRun]
    total: int


def load_board(
    connection: sqlite3.Connection, wanted: RunFilter, limit: int = PAGE, offset: int = 0
) -> BoardPage:
    """Return a page of the runs that match."""
    where, values = _condition(wanted)
    with snapshot(connection):
        (total,) = connection.execute(f"SELECT count(*) FROM run WHERE {where}", values).fetchone()
        rows = connection.execute(
            f"SELECT run_id FROM run WHERE {where} ORDER BY created_at DESC, run_id LIMIT ? OFFSET ?",
            (*values, limit, offset),
        ).fetchall()
        return BoardPage(load_board_runs(connection, [run_id for (run_id,) in rows]), total)


def load_board_runs(connection: sqlite3.Connection, run_ids: Sequence[str]) -> list[BoardRun]:
    """Return the rows of those of `run_ids` that exist."""
    with snapshot(connection):
        return [_board_run(connection, summary) for summary in find_summaries(connection, run_ids)]


def _board_run(connection: sqlite3.Connection, summary: RunSummary) -> BoardRun:
    return BoardRun(
        **msgspec.structs.asdict(summary),
        incidents=count_incidents(connection, summary.run_id),
        sparkline=load_sparkline(connection, summary.run_id),
    )


def require_run(connection: sqlite3.Connection, run_id: str) -> None:
    """Check that a run exists.

    Raises:
        NotFound: if there is no such run.
    """
    if connection.execute("SELECT 1 FROM run WHERE run_id = ?", (run_id,)).fetchone() is None:
        raise NotFound(f"there is no run {run_id!r}")


def count_incidents(connection: sqlite3.Connection, run_id: str) -> IncidentCounts:
    """Return how many incidents a run has."""
    rows = connection.execute(
        "SELECT severity, count(*), sum(state = 'open') FROM incident"
        " WHERE run_id = ? AND state != 'withdrawn' GROUP BY severity",
        (run_id,),
    ).fetchall()
    counts = {severity: count for severity, count, _ in rows}
    return msgspec.convert({**counts, "open": sum(opened for *_, opened in rows)}, IncidentCounts)


def load_sparkline(connection: sqlite3.Connection, run_id: str) -> dict[str, Any] | None:
    """Return the whole loss of a run's first rank in few buckets, or None where it has no loss."""
    (rank,) = connection.execute("SELECT min(rank) FROM session WHERE run_id = ?", (run_id,)).fetchone()
    answer = read_series(connection, run_id, [SPARKLINE_SERIES], pixels=SPARKLINE_PIXELS, rank=rank or 0)
    data = answer.series.get(SPARKLINE_SERIES)
    return tell_series(data) if data is not None and len(data.rows) and not data.layers else None


def _condition(wanted: RunFilter) -> tuple[str, tuple[str, ...]]:
    terms, values = ["1"], []
    fields = {"project": wanted.project, "run_group": wanted.group, "state": wanted.state}
    for column, value in fields.items():
        if value is not None:
            terms.append(f"{column} = ?")
            values.append(value)
    if wanted.tag is not None:
        terms.append("EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)")
        values.append(wanted.tag)
    if wanted.text:
        # instr, not LIKE: what a person types has no wildcards.
        named = "coalesce(name, '') || char(10) || run_id || char(10) || project || char(10) || tags"
        terms.append(f"instr(lower({named} || char(10) || coalesce(run_group, '')), lower(?)) > 0")
        values.append(wanted.text)
    return " AND ".join(terms), tuple(values)
