"""`scripts/score [FOLDER]`: score the detectors on labelled logs and write docs/detection.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scoring.page import render
from scoring.programs import ProgramOutcome, run_all
from scoring.tally import by_class, healthy, wrong
from scoring.traces import LABELS, Outcome, judge_all, read_labels
from server_process import running_server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/detection.md"
DEFAULT_CORPUS = ROOT.parent / "shared/corpus"
DOT_EVERY = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Score what was asked for and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/score", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=DEFAULT_CORPUS, help="holds traces/ and, for --cases, cases/"
    )
    parser.add_argument("--cases", nargs="*", metavar="NAME", help="also train the programs (minutes)")
    parser.add_argument("--no-page", action="store_true", help=f"leave {PAGE.name} as it is")
    parser.add_argument("--page", type=Path, default=PAGE, help="where to write the page")
    args = parser.parse_args(argv)
    traces = args.folder / "traces"
    if not (traces / LABELS).is_file():
        sys.stderr.write(f"scripts/score: no {LABELS} in {traces}: give a folder with traces/{LABELS}\n")
        return 2
    outcomes = _judge(traces)
    _say(outcomes)
    programs = _programs(args.folder / "cases", args.cases) if args.cases is not None else None
    if not args.no_page:
        unscored = len(read_labels(traces)) - len(outcomes)
        previous = args.page.read_text() if args.page.exists() else ""
        args.page.write_text(render(outcomes, unscored, programs, previous))
    return 0


def _judge(traces: Path) -> list[Outcome]:
    outcomes = []
    for outcome in judge_all(traces):
        outcomes.append(outcome)
        if len(outcomes) % DOT_EVERY == 0 and sys.stderr.isatty():
            sys.stderr.write(".")
            sys.stderr.flush()
    return outcomes


def _say(outcomes: Sequence[Outcome]) -> None:
    calm = healthy(outcomes)
    sys.stdout.write(f"healthy runs {calm.runs}: paged {len(calm.paged)}, noted {len(calm.noted)}\n")
    for name in (*calm.paged, *calm.noted):
        sys.stdout.write(f"    {name}\n")
    sys.stdout.write(f"{'class':28} {'runs':>5} {'seen':>5} {'named':>5} {'early':>5}\n")
    for label, item in by_class(outcomes).items():
        sys.stdout.write(f"{label:28} {item.runs:5} {item.seen:5} {item.named:5} {item.early:5}\n")
    for outcome in wrong(outcomes):
        sys.stdout.write(f"    {outcome.label.label}: {outcome.label.name} told as {outcome.first}\n")


def _programs(folder: Path, names: Sequence[str]) -> list[ProgramOutcome]:
    outcomes = []
    with tempfile.TemporaryDirectory() as data, running_server(Path(data)) as server:
        for outcome in run_all(folder, server, names):
            outcomes.append(outcome)
            sys.stdout.write(
                f"{'ok ' if outcome.is_ok else 'NOT'} {outcome.name:32} {', '.join(outcome.told)}\n"
            )
            sys.stdout.flush()
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
