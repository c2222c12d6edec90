"""`trainvitals check FILE...`: judges training logs without a server.

Exit code 0: healthy; 1: an incident that is more than a note; 2: a file that cannot be read. Needs only the
base install.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainvitals.wire import Hello
from trainvitals_server.codec import dumps
from trainvitals_server.detect.needs import coverage
from trainvitals_server.fold import RunFold
from trainvitals_server.incident import Incident
from trainvitals_server.logfile import Log, UnreadableLog, read_log

SUFFIXES = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz")
MARKS = {"critical": "!!", "warning": " !", "info": "  "}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a log, or a folder of logs")
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each file")


def run(args: argparse.Namespace) -> int:
    """Judge the files and return the exit code."""
    worst = 0
    for path in _files(args.files):
        try:
            log = read_log(path)
        except UnreadableLog as error:
            worst = 2
            _say_unreadable(error, as_json=args.json)
            continue
        incidents = judge(log)
        if worst < 2 and any(incident.severity != "info" for incident in incidents):
            worst = 1
        sys.stdout.write(_json_line(log, incidents) if args.json else _text(log, incidents))
    return worst


def judge(log: Log) -> list[Incident]:
    """Return the incidents of a log, in order; a branch goes on with what was known before it."""
    fold = RunFold(log.path.name)
    for ordinal, branch in enumerate(log.branches):
        session = str(ordinal)
        resume = int(branch.steps[0]) if ordinal else None
        fold.hello(Hello(run_id=fold.run_id, session_id=session, session_ordinal=ordinal, resume_step=resume))
        fold.rows(0, session, branch)
    return fold.incidents()


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(item for item in path.rglob("*") if item.name.endswith(SUFFIXES))
        else:
            yield path


def _say_unreadable(error: UnreadableLog, *, as_json: bool) -> None:
    if as_json:
        empty: dict[str, object] = {"rows": 0, "incidents": [], "ran": [], "skipped": []}
        line = {"file": str(error.path), **empty, "error": str(error)}
        sys.stdout.write(dumps(line).decode() + "\n")
    sys.stderr.write(f"{error}\n")


def _json_line(log: Log, incidents: Sequence[Incident]) -> str:
    ran, skipped = coverage(log.series)
    line = {
        "file": str(log.path), "rows": log.rows, "incidents": list(incidents), "ran": ran,
        "skipped": [{"kind": item.kind, "reason": item.reason} for item in skipped], "notes": log.notes,
    }  # fmt: skip
    return dumps(line).decode() + "\n"


def _text(log: Log, incidents: Sequence[Incident]) -> str:
    ran, skipped = coverage(log.series)
    first, last = int(log.branches[0].steps[0]), int(log.branches[-1].steps[-1])
    loud = [incident for incident in incidents if incident.severity != "info"]
    lines = [f"{log.path}: {log.rows} rows, steps {first} to {last}: {_summary(loud)}"]
    lines += [f"   note: {note}" for note in log.notes]
    for incident in incidents:
        lines += _incident_lines(incident)
    reasons: dict[str, list[str]] = {}
    for item in skipped:
        reasons.setdefault(item.reason, []).append(item.kind)
    lines.append(f"   looked for: {', '.join(ran)}")
    lines += [f"   not looked for ({reason}): {', '.join(kinds)}" for reason, kinds in reasons.items()]
    return "\n".join(lines) + "\n"


def _summary(loud: Sequence[Incident]) -> str:
    return "healthy" if not loud else "1 incident" if len(loud) == 1 else f"{len(loud)} incidents"


def _incident_lines(incident: Incident) -> list[str]:
    lines = [f"{MARKS[incident.severity]} {incident.kind}: {incident.verdict}"]
    if incident.severity != "info":
        lines += [f"     why:  {line}" for line in incident.why[:3]]
        lines += [f"     next: {line}" for line in incident.next[:2]]
    return lines
