"""Traces: labelled logs, judged as `trainvitals check` judges them, and what became of each."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scoring.rules import GRACE_STEPS, HEALTHY, NAMED_BY, NOTE_IS_ENOUGH
from trainvitals_server.check import judge
from trainvitals_server.incident import Incident
from trainvitals_server.logfile import read_log

LABELS = "labels.csv"
SUFFIX = ".csv.gz"


@dataclass(frozen=True, slots=True)
class Label:
    """What is known about a trace: from facts, or with hindsight."""

    name: str
    label: str
    onset_step: float | None = None
    nonfinite_step: float | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether nobody should be told anything."""
        return self.label in HEALTHY

    @property
    def is_scored(self) -> bool:
        """Whether the label says clearly enough what should be found."""
        return self.is_healthy or self.label in NAMED_BY


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the detectors made of one trace.

    `first` is the kind that was told first among those that count; `lead` the steps from then to the first
    non-finite value, `share` that lead as a part of what hindsight allows, `delay` the steps from the onset
    where nothing became non-finite.
    """

    label: Label
    rows: int
    reading_s: float
    judging_s: float
    critical: int = 0
    warnings: int = 0
    first: str | None = None
    is_named: bool = False
    lead: float | None = None
    share: float | None = None
    delay: float | None = None

    @property
    def is_seen(self) -> bool:
        """Whether it was told in time that something is wrong."""
        return self.first is not None

    @property
    def is_early(self) -> bool:
        """Whether it was told before the first non-finite value."""
        return self.lead is not None and self.lead > 0


def read_labels(folder: Path) -> list[Label]:
    """Return the labels of the traces in a folder."""
    with (folder / LABELS).open(newline="") as stream:
        return [
            Label(row["name"], row["label"], _number(row["onset_step"]), _number(row["nonfinite_step"]))
            for row in csv.DictReader(stream)
        ]


def judge_all(folder: Path) -> Iterator[Outcome]:
    """Judge the scored traces of a folder, one by one."""
    for label in read_labels(folder):
        if label.is_scored:
            began = time.perf_counter()
            log = read_log(folder / (label.name + SUFFIX))
            read = time.perf_counter()
            incidents = judge(log)
            yield outcome(label, incidents, log.rows, read - began, time.perf_counter() - read)


def outcome(
    label: Label, incidents: Sequence[Incident], rows: int = 0, reading_s: float = 0.0, judging_s: float = 0.0
) -> Outcome:
    """Return what the incidents are worth, given the label."""
    critical = [incident for incident in incidents if incident.severity == "critical"]
    warnings = [incident for incident in incidents if incident.severity == "warning"]
    pool = incidents if label.label in NOTE_IS_ENOUGH else critical
    fact, onset = label.nonfinite_step, label.onset_step
    told = sorted(
        (item for item in pool if fact is None or item.detected_step <= fact + GRACE_STEPS),
        key=lambda item: item.detected_step,
    )
    right = [item.kind in NAMED_BY.get(label.label, ()) for item in told]
    step = told[0].detected_step if told else None
    lead = fact - step if fact is not None and step is not None else None
    return Outcome(
        label, rows, reading_s, judging_s, len(critical), len(warnings),
        first=told[0].kind if told else None,
        is_named=any(right) if label.label in NOTE_IS_ENOUGH else right[:1] == [True],
        lead=lead,
        share=_share(lead, fact, onset),
        delay=step - onset if fact is None and step is not None and onset is not None else None,
    )  # fmt: skip


def _share(lead: float | None, fact: float | None, onset: float | None) -> float | None:
    if lead is None or fact is None or onset is None or fact <= onset:
        return None
    return max(0.0, lead) / (fact - onset)


def _number(text: str) -> float | None:
    return float(text) if text else None
