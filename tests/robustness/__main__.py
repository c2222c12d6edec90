"""`python -m robustness [FOLDER]`: change labelled traces, and count what is told otherwise."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from robustness.changes import CHANGES, Named
from scoring.traces import SUFFIX, Label, outcome, read_labels
from trainvitals_server.check import judge
from trainvitals_server.incident import Incident
from trainvitals_server.logfile import Log, read_log

DEFAULT_CORPUS = Path(__file__).parents[3] / "shared/corpus/traces"
SAME_SHARE = 0.25  # an onset that moves by more than this share of the run's rows so far, and
SAME_ROWS = 10  # by more than so many rows, is another one


@dataclass(frozen=True, slots=True)
class Told:
    """What was told about one trace: the kinds that count, and whether the label is met."""

    label: Label
    loud: tuple[str, ...]
    notes: tuple[str, ...]
    first: str | None
    is_named: bool
    is_early: bool
    onset_row: int | None

    @property
    def is_good(self) -> bool:
        """Whether nothing is told of a healthy run, and the right thing of a failing one."""
        return not (self.loud or self.notes) if self.label.is_healthy else self.is_named


def main(argv: Sequence[str] | None = None) -> int:
    """Judge every trace under every change and print one line a change."""
    parser = argparse.ArgumentParser(prog="python -m robustness", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_CORPUS)
    parser.add_argument("--only", action="append", help="part of a change's name")
    parser.add_argument("--name", default="", help="part of the traces' names")
    parser.add_argument("--out", type=Path, help="write every trace that is told otherwise, a JSON line each")
    args = parser.parse_args(argv)
    changes = [item for item in CHANGES if not args.only or any(part in item.name for part in args.only)]
    labels = [one for one in read_labels(args.folder) if one.is_scored and args.name in one.name]
    found: dict[str, list[tuple[Told, Told]]] = {item.name: [] for item in changes}
    for label in labels:
        log = read_log(args.folder / (label.name + SUFFIX))
        plain = told_of(label, log, CHANGES[0])
        for item in changes:
            changed = changed_log(label, log, item, plain)
            if changed is not None:
                told = plain if item is CHANGES[0] else told_of(item.label(label), changed, item)
                found[item.name].append((plain, told))
    _say(found)
    if args.out:
        args.out.write_text("".join(_lines(found)))
    return 0


def _with_onset(label: Label, plain: Told) -> Label:
    """Return the label with the onset that is told of the whole trace where that is earlier.

    A change that leaves out what a finite divergence began with makes another trace of it.
    """
    if label.is_healthy or plain.onset_row is None:
        return label
    onsets = [step for step in (label.onset_step, plain.onset_row) if step is not None]
    return replace(label, onset_step=min(onsets))


def changed_log(label: Label, log: Log, item: Named, plain: Told) -> Log | None:
    """Return the log under a change; None where that would make another run of it."""
    label = _with_onset(label, plain)
    branches = [item.change(branch, label) for branch in log.branches]
    kept = [branch for branch in branches if branch is not None and len(branch)]
    return replace(log, branches=kept) if len(kept) == len(branches) else None


def told_of(label: Label, log: Log, item: Named) -> Told:
    """Return what is told of a log under a change."""
    incidents = judge(log)
    result = outcome(label, incidents)
    loud = [one for one in incidents if one.severity == "critical"]
    notes = [one for one in incidents if one.severity == "warning"]
    return Told(
        label, tuple(_brief(one) for one in loud), tuple(_brief(one) for one in notes), result.first,
        result.is_named, result.is_early, int(item.back(loud[0].onset_step)) if loud else None,
    )  # fmt: skip


def _brief(incident: Incident) -> str:
    return f"{incident.kind} {incident.onset_step} {incident.detected_step} {incident.state}"


def _say(found: dict[str, list[tuple[Told, Told]]]) -> None:
    head = ("change", "healthy", "paged", "noted", "failing", "lost", "misnamed", "late", "kind", "onset")
    sys.stdout.write(f"{head[0]:30}" + "".join(f"{word:>9}" for word in head[1:]) + "\n")
    for name, pairs in found.items():
        healthy = [told for _, told in pairs if told.label.is_healthy]
        failing = [(plain, told) for plain, told in pairs if not told.label.is_healthy]
        numbers = (
            len(healthy),
            sum(bool(told.loud) for told in healthy),
            sum(bool(told.notes) for told in healthy),
            len(failing),
            sum(told.first is None for _, told in failing),
            sum(told.first is not None and not told.is_named for _, told in failing),
            sum(plain.is_early and not told.is_early for plain, told in failing),
            sum(plain.first != told.first for plain, told in failing),
            sum(_has_moved(plain, told) for plain, told in failing),
        )
        sys.stdout.write(f"{name:30}" + "".join(f"{number:9}" for number in numbers) + "\n")
    lost = Counter(
        told.label.label
        for pairs in found.values()
        for plain, told in pairs
        if plain.is_good and not told.is_good
    )
    sys.stdout.write(f"told otherwise and wrongly, by label: {dict(lost)}\n")


def _has_moved(plain: Told, told: Told) -> bool:
    if plain.onset_row is None or told.onset_row is None:
        return False
    return abs(told.onset_row - plain.onset_row) > max(SAME_ROWS, SAME_SHARE * abs(plain.onset_row))


def _lines(found: dict[str, list[tuple[Told, Told]]]) -> Iterator[str]:
    for name, pairs in found.items():
        for plain, told in pairs:
            if not told.is_good or plain.first != told.first or _has_moved(plain, told):
                yield json.dumps({
                    "change": name, "trace": told.label.name, "label": told.label.label,
                    "fact": told.label.nonfinite_step, "label_onset": told.label.onset_step,
                    "before": [*plain.loud[:2], *plain.notes[:1]], "first_before": plain.first,
                    "after": [*told.loud[:2], *told.notes[:2]], "first": told.first, "good": told.is_good,
                    "new": plain.is_good and not told.is_good,
                }) + "\n"  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
