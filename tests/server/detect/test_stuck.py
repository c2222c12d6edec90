"""Runs that do not learn, and what goes wrong beside a training: found, cut and split alike, and told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stuck import STUCK, TWINS
from trainvitals.wire import Hello
from trainvitals_server.batch import Batch
from trainvitals_server.book import Book
from trainvitals_server.catalogue import CATALOGUE
from trainvitals_server.finding import Finding, Kind, Phase, Severity
from trainvitals_server.fold import RunFold, scan
from trainvitals_server.incident import Incident

SEEDS = 8
NOTES: tuple[Kind, ...] = ("plateau", "oscillation", "overfitting", "slow_steps")


def of_kind(kind: str, batch: Batch) -> list[Incident]:
    return [incident for incident in scan([batch]) if incident.kind == kind]


def fold_in_pieces(batch: Batch, cuts: Sequence[int]) -> list[Incident]:
    fold = RunFold("scan")
    fold.hello(Hello(run_id="scan", session_id="scan"))
    for start, stop in pairwise([0, *sorted(cuts), len(batch)]):
        fold.rows(0, "scan", batch.slice(start, stop))
        fold = RunFold.load(fold.dump())
    return fold.incidents()


def told(incidents: Sequence[Incident]) -> list[bytes]:
    return [msgspec.msgpack.encode(incident) for incident in incidents]


@pytest.mark.parametrize("name", STUCK)
def test_each_is_found_once_whatever_the_seed(name: str) -> None:
    kind, maker = STUCK[name]
    assert [len(of_kind(kind, maker(seed))) for seed in range(SEEDS)] == [1] * SEEDS


@pytest.mark.parametrize("name", TWINS)
def test_what_only_looks_like_it_is_not_named(name: str) -> None:
    kind, maker = TWINS[name]
    assert [seed for seed in range(SEEDS) if of_kind(kind, maker(seed))] == []


@pytest.mark.parametrize("name", STUCK)
@settings(max_examples=10)
@given(data=st.data())
def test_any_split_and_any_restart_give_the_same_incidents(name: str, data: st.DataObject) -> None:
    batch = STUCK[name][1](data.draw(st.integers(0, 3)))
    whole = scan([batch])
    assert whole
    cuts = data.draw(st.lists(st.integers(0, len(batch)), max_size=12))
    assert told(fold_in_pieces(batch, cuts)) == told(whole)


@pytest.mark.parametrize("name", STUCK)
def test_nothing_later_than_the_detected_step_is_used(name: str) -> None:
    kind, maker = STUCK[name]
    (incident,) = of_kind(kind, maker(1))
    (early,) = of_kind(kind, maker(1).slice(0, incident.detected_step + 1))
    assert (early.id, early.verdict, early.detected_step) == (
        incident.id,
        incident.verdict,
        incident.detected_step,
    )


@pytest.mark.parametrize("name", STUCK)
def test_rows_a_hundred_steps_apart_are_judged_alike(name: str) -> None:
    kind, maker = STUCK[name]
    batch = maker(0)
    sparse = Batch(batch.steps * 100 + 7, batch.columns)
    (near,), (far,) = of_kind(kind, batch), of_kind(kind, sparse)
    assert far.detected_step == near.detected_step * 100 + 7


@pytest.mark.parametrize("name", STUCK)
def test_those_that_are_only_worth_a_look_page_nobody(name: str) -> None:
    kind, maker = STUCK[name]
    (incident,) = of_kind(kind, maker(0))
    assert (incident.severity == "info") is (kind in NOTES)


@pytest.mark.parametrize("name", STUCK)
def test_each_is_told_in_words_with_a_cause_and_its_fix(name: str) -> None:
    kind, maker = STUCK[name]
    (incident,) = of_kind(kind, maker(0))
    assert incident.verdict.endswith(".")
    assert "?" not in incident.verdict
    assert str(incident.onset_step) in incident.verdict
    assert incident.causes[0].cause in CATALOGUE
    assert incident.causes[0].fix in " ".join(incident.next[:2])
    assert incident.why


def finding(kind: Kind, severity: Severity, onset: int, step: int, phase: Phase = "open") -> Finding:
    return Finding(kind=kind, severity=severity, onset_step=onset, detected_step=step, phase=phase)


@pytest.mark.parametrize("kind", NOTES[:3])
def test_beside_an_open_failure_it_is_a_consequence_and_its_end_does_not_end_the_failure(kind: Kind) -> None:
    book = Book("run", "session")
    book.add(finding("nonfinite_gradient", "critical", 0, 0))
    book.add(finding(kind, "info", 0, 320))
    book.add(finding(kind, "info", 0, 400, "withdraw"))
    (incident,) = book.incidents
    assert (incident.kind, incident.state) == ("nonfinite_gradient", "open")


@pytest.mark.parametrize("kind", [*NOTES, "metric_nonfinite"])
def test_beside_it_a_failure_opens_an_incident_of_its_own(kind: Kind) -> None:
    book = Book("run", "session")
    book.add(finding(kind, "warning" if kind == "metric_nonfinite" else "info", 0, 320))
    book.add(finding("gradual_divergence", "warning", 300, 330))
    assert [incident.kind for incident in book.incidents] == [kind, "gradual_divergence"]


def test_slow_steps_are_never_the_doing_of_a_failure() -> None:
    book = Book("run", "session")
    book.add(finding("sudden_nan", "critical", 0, 0))
    book.add(finding("slow_steps", "info", 300, 400))
    book.add(finding("slow_steps", "info", 300, 600, "resolve"))
    assert [(incident.kind, incident.state) for incident in book.incidents] == [
        ("sudden_nan", "open"),
        ("slow_steps", "resolved"),
    ]
