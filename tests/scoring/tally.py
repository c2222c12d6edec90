"""Tally: the outcomes of many traces as counts for each class, and as rates of false alarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from scoring.traces import Outcome

NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class ClassTally:
    """The traces of one label."""

    runs: int
    seen: int
    named: int
    early: int
    leads: tuple[float, ...]
    shares: tuple[float, ...]
    delays: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HealthyTally:
    """The healthy traces: how many of them somebody was told about, and how often in all."""

    runs: int
    rows: int
    paged: tuple[str, ...]
    noted: tuple[str, ...]
    pages: int
    notes: int


def by_class(outcomes: Iterable[Outcome]) -> dict[str, ClassTally]:
    """Return the tally of each label that is not healthy."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if not outcome.label.is_healthy:
            groups.setdefault(outcome.label.label, []).append(outcome)
    return {label: _tally(groups[label]) for label in sorted(groups, key=lambda label: -len(groups[label]))}


def healthy(outcomes: Iterable[Outcome]) -> HealthyTally:
    """Return the tally of the healthy traces."""
    found = [outcome for outcome in outcomes if outcome.label.is_healthy]
    return HealthyTally(
        len(found),
        sum(outcome.rows for outcome in found),
        tuple(outcome.label.name for outcome in found if outcome.critical),
        tuple(outcome.label.name for outcome in found if outcome.warnings),
        sum(outcome.critical for outcome in found),
        sum(outcome.warnings for outcome in found),
    )


def confusion(outcomes: Iterable[Outcome]) -> dict[str, Counter[str]]:
    """Return for each label how often which kind was told first."""
    table: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        label = "healthy" if outcome.label.is_healthy else outcome.label.label
        table.setdefault(label, Counter())[outcome.first or NOTHING] += 1
    return table


def wrong(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the failing traces that were not seen, or named wrongly."""
    return [outcome for outcome in outcomes if not outcome.label.is_healthy and not outcome.is_named]


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which this share of `values` lies; None where there are none."""
    return float(np.quantile(values, share)) if values else None


def _tally(outcomes: Sequence[Outcome]) -> ClassTally:
    return ClassTally(
        len(outcomes),
        sum(outcome.is_seen for outcome in outcomes),
        sum(outcome.is_named for outcome in outcomes),
        sum(outcome.is_early for outcome in outcomes),
        tuple(outcome.lead for outcome in outcomes if outcome.lead is not None and outcome.is_early),
        tuple(outcome.share for outcome in outcomes if outcome.share is not None),
        tuple(outcome.delay for outcome in outcomes if outcome.delay is not None),
    )
