"""`trainvitals check FILE...`: judges training logs without a server.

Exit code 0: healthy; 1: an incident that is more than a note; 2: a file that cannot be read. Needs only the
base install.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainvitals.wire import Hello, Layout
from trainvitals_server.batch import Batch
from trainvitals_server.codec import dumps
from trainvitals_server.detect.needs import coverage
from trainvitals_server.fold import RunFold
from trainvitals_server.incident import Incident
from trainvitals_server.log_report import chart_width, report, show
from trainvitals_server.log_units import in_units
from trainvitals_server.logfile import Log, read_log
from trainvitals_server.loss_parts import as_loss, of_part
from trainvitals_server.progress import Progress
from trainvitals_server.readers import NothingToJudge, UnreadableLog, is_log, printable, runs_of

HEALTHY, TROUBLED, UNREADABLE = 0, 1, 2


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a log, or a folder of logs")
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each file")
    parser.add_argument(
        "--verbose", action="store_true", help="name every kind that was looked for or not, with the reason"
    )


def run(args: argparse.Namespace) -> int:
    """Judge the files and return the exit code."""
    try:
        code = _check(args.files, as_json=args.json, is_verbose=args.verbose)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the report has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREADABLE
    return code


def judge(log: Log) -> list[Incident]:
    """Return the incidents of a log, in order; those of parts of a loss that it has no total of come last."""
    found = _incidents(log, log.branches)
    for part in log.judged_parts:
        branches = [as_loss(branch, part) for branch in log.branches]
        found += [of_part(incident, part) for incident in _incidents(log, branches)]
    return [in_units(incident, log.unit) for incident in found]


def _incidents(log: Log, branches: Sequence[Batch]) -> list[Incident]:
    """Return the incidents of some rows; a branch goes on with what was known before it."""
    fold = RunFold(printable(log.path.name))
    for ordinal, branch in enumerate(branches):
        session = str(ordinal)
        resume = int(branch.steps[0]) if ordinal else None
        fold.hello(Hello(run_id=fold.run_id, session_id=session, session_ordinal=ordinal, resume_step=resume))
        if log.layers:
            fold.layout(0, session, Layout(seq=1, layout_id=1, layers=list(log.layers)))
        fold.sessions[f"0/{session}"].is_by_step = log.unit == "step"
        fold.rows(0, session, branch)
    return fold.incidents()


def _check(paths: Sequence[Path], *, as_json: bool, is_verbose: bool) -> int:
    files = [file for path in paths for file in _files(path)]
    progress = Progress(sys.stderr, sum(_bytes(part) for file in files for part in file.parts))
    worst, is_any_judged = HEALTHY, False
    for file in files:
        try:
            if file.trouble:
                raise UnreadableLog(file.path, file.trouble)
            log = read_log(file.path, progress.advance, file.parts)
        except UnreadableLog as error:
            progress.clear()
            if file.is_found and isinstance(error, NothingToJudge):
                sys.stderr.write(f"left out: {error}\n")
                continue
            worst = UNREADABLE
            _say_unreadable(error, as_json=as_json)
            continue
        incidents, is_any_judged = judge(log), True
        if worst == HEALTHY and any(incident.severity != "info" for incident in incidents):
            worst = TROUBLED
        progress.clear()
        _say(log, incidents, as_json=as_json, is_verbose=is_verbose)
    return worst if is_any_judged else UNREADABLE


class _File(NamedTuple):
    """A log; one of a run that lies in several files has these as its `parts`."""

    path: Path
    parts: tuple[Path, ...]
    is_found: bool = False  # in a folder, so nobody said that it is a log
    trouble: str = ""


def _files(path: Path) -> Iterator[_File]:
    if not path.is_dir():
        yield _File(path, (path,))
        return
    found = runs_of(file for file in path.rglob("*") if is_log(file) and file.is_file())
    yield from (_File(run.path, run.parts, is_found=True) for run in found)
    if not found:
        yield _File(path, (), trouble="no log in this folder: .csv, .jsonl, event files of TensorBoard, ...")


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _say(log: Log, incidents: Sequence[Incident], *, as_json: bool, is_verbose: bool) -> None:
    if as_json:
        sys.stdout.write(_json_line(log, incidents))
    else:
        is_plain = not (sys.stdout.encoding or "").lower().startswith("utf")
        lines = report(log, incidents, width=chart_width(), is_plain=is_plain, is_verbose=is_verbose)
        show(lines, sys.stdout)


def _say_unreadable(error: UnreadableLog, *, as_json: bool) -> None:
    if as_json:
        empty: dict[str, object] = {"rows": 0, "incidents": [], "ran": [], "skipped": {}}
        line = {"file": printable(str(error.path)), **empty, "error": str(error)}
        sys.stdout.write(dumps(line).decode() + "\n")
    sys.stderr.write(f"{error!s}\n")


def _json_line(log: Log, incidents: Sequence[Incident]) -> str:
    ran, skipped = coverage(log.counts)
    line: dict[str, object] = {
        "file": printable(str(log.path)), "rows": log.rows, "incidents": list(incidents), "ran": ran,
        "skipped": {item.kind: item.reason for item in skipped},
    }  # fmt: skip
    if log.notes:
        line["notes"] = log.notes
    return dumps(line).decode() + "\n"
