"""Logs of real trainings: what is found and named in them may only get better, however they are cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.tally import by_class, healthy, quantile
from scoring.traces import LABELS, SUFFIX, Label, Outcome, judge_all, outcome, read_labels
from trainvitals.wire import Hello
from trainvitals_server.batch import Batch, Series
from trainvitals_server.check import judge
from trainvitals_server.detect.needs import coverage
from trainvitals_server.fold import Detectors, RunFold, scan
from trainvitals_server.incident import Incident
from trainvitals_server.logfile import Log, read_log

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/fixtures/traces"
CORPUS = ROOT.parent / "shared/corpus/traces"
SOURCES = {"fixtures": FIXTURES} | ({"corpus": CORPUS} if (CORPUS / LABELS).exists() else {})

# (seen, named, early) of each class at least; early where the class is about a warning in time.
FLOORS: dict[str, dict[str, tuple[int, int, int]]] = {
    "fixtures": {
        "immediate_blowup": (14, 14, 0),
        "fast_divergence_to_nan": (14, 14, 13),
        "gradual_divergence_to_nan": (10, 10, 10),
        "nonfinite_grad_norm": (9, 8, 0),
        "finite_divergence": (6, 6, 0),
        "sudden_nan": (5, 5, 0),
        "stuck_high_lr": (3, 3, 0),
        "nonfinite_loss": (2, 2, 0),
        "early_divergence": (1, 1, 0),
        "spike_with_loss_scale_drop": (1, 1, 0),
        "spike_recovers": (1, 1, 0),
    },
    "corpus": {
        "immediate_blowup": (66, 66, 0),
        "fast_divergence_to_nan": (37, 37, 36),
        "gradual_divergence_to_nan": (10, 10, 10),
        "nonfinite_grad_norm": (9, 8, 0),
        "finite_divergence": (14, 14, 0),
        "sudden_nan": (5, 5, 0),
        "stuck_high_lr": (9, 9, 0),
        "nonfinite_loss": (2, 2, 0),
        "early_divergence": (1, 1, 0),
        "spike_with_loss_scale_drop": (1, 1, 0),
        "spike_recovers": (1, 1, 0),
    },
}
HEALTHY_RUNS = {"fixtures": 41, "corpus": 219}
LEAST_LEAD_SHARE = 0.8  # of the warning time that hindsight allows in a gradual divergence
NOT_YET_NAMED = frozenset({
    # From 0.18 to 32.8 and 1.5e7 in five rows, all finite: a divergence that the gradient norm ends.
    "algoperf/BAD_v05_shampoo_submission_criteo1tb_pytorch_s4_t3",
})  # fmt: skip
SHORT_ROWS = 3000  # longer traces are judged once, for the floors
LEARNED_ROWS = 64  # from then on a run knows its own noise, and no loss is large or small by itself
FAILING = [label for label in read_labels(FIXTURES) if label.is_scored and not label.is_healthy]
BY_NAME = {label.name: label for label in FAILING}


@cache
def outcomes_of(source: str) -> list[Outcome]:
    return list(judge_all(SOURCES[source]))


@cache
def log_of(name: str) -> Log:
    return read_log(FIXTURES / (name + SUFFIX))


def short_names() -> list[str]:
    return [label.name for label in FAILING if log_of(label.name).rows <= SHORT_ROWS]


def told(incidents: Iterable[Incident]) -> list[bytes]:
    return [msgspec.msgpack.encode(incident) for incident in incidents]


def brief(incidents: Iterable[Incident]) -> list[tuple[str, str, int, int]]:
    return [(item.kind, item.severity, item.onset_step, item.detected_step) for item in incidents]


def in_pieces(log: Log, cuts: Sequence[int], restarts: Sequence[bool]) -> list[Incident]:
    """Judge a log as `check` does, but in pieces, and with the state saved and loaded in between."""
    fold = RunFold(log.path.name)
    for ordinal, branch in enumerate(log.branches):
        session = str(ordinal)
        resume = int(branch.steps[0]) if ordinal else None
        fold.hello(Hello(run_id=fold.run_id, session_id=session, session_ordinal=ordinal, resume_step=resume))
        bounds = [0, *sorted(min(cut, len(branch)) for cut in cuts), len(branch)]
        for place, (start, stop) in enumerate(pairwise(bounds)):
            fold.rows(0, session, branch.slice(start, stop))
            if restarts[place % len(restarts)]:
                fold = RunFold.load(fold.dump())
    return fold.incidents()


def with_loss(batch: Batch, factor: float = 1.0, shift: float = 0.0) -> Batch:
    loss = batch.columns["loss"]
    return Batch(batch.steps, {**batch.columns, "loss": Series(loss.values * factor + shift, loss.present)})


def learned(batch: Batch, incidents: Iterable[Incident]) -> list[tuple[str, int, int]]:
    """Return the critical incidents that began once the run knew itself."""
    return [
        (item.kind, item.onset_step, item.detected_step)
        for item in incidents
        if item.severity == "critical" and np.searchsorted(batch.steps, item.onset_step) >= LEARNED_ROWS
    ]


def is_named(label: Label) -> bool:
    return outcome(label, judge(log_of(label.name))).is_named


@pytest.mark.timeout(600)
@pytest.mark.parametrize("source", SOURCES)
def test_each_class_is_seen_named_and_warned_of_as_often_as_before(source: str) -> None:
    found = {
        label: (item.seen, item.named, item.early) for label, item in by_class(outcomes_of(source)).items()
    }
    short = {
        label: (floor, found.get(label))
        for label, floor in FLOORS[source].items()
        if any(have < least for have, least in zip(found.get(label, (0, 0, 0)), floor, strict=True))
    }
    assert short == {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("source", SOURCES)
def test_no_healthy_run_is_paged_or_noted(source: str) -> None:
    tally = healthy(outcomes_of(source))
    assert (tally.runs, tally.paged, tally.noted) == (HEALTHY_RUNS[source], (), ())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("source", SOURCES)
def test_gradual_divergences_are_told_nearly_as_early_as_hindsight_allows(source: str) -> None:
    share = quantile(by_class(outcomes_of(source))["gradual_divergence_to_nan"].shares, 0.5)
    assert share is not None
    assert share >= LEAST_LEAD_SHARE


def test_every_trace_lies_there_and_every_class_has_some() -> None:
    assert [
        label.name for label in read_labels(FIXTURES) if not (FIXTURES / (label.name + SUFFIX)).exists()
    ] == []
    assert {label.label for label in FAILING} == {*FLOORS["fixtures"]}


@pytest.mark.parametrize("name", short_names())
@settings(max_examples=6)
@given(data=st.data())
def test_any_split_and_any_restart_give_the_same_incidents(name: str, data: st.DataObject) -> None:
    log, whole = log_of(name), judge(log_of(name))
    assert name in NOT_YET_NAMED or outcome(BY_NAME[name], whole).is_named
    cuts = data.draw(st.lists(st.integers(0, log.rows), max_size=8))
    restarts = data.draw(st.lists(st.booleans(), min_size=1, max_size=3))
    assert told(in_pieces(log, cuts, restarts)) == told(whole)


@pytest.mark.parametrize("name", short_names())
def test_any_subset_of_columns_is_judged_for_what_it_can_show(name: str) -> None:
    for branch in log_of(name).branches:
        names = list(branch.columns)
        for chosen in range(1 << len(names)):
            columns = {name: branch.columns[name] for place, name in enumerate(names) if chosen >> place & 1}
            ran, _ = coverage({name for name, series in columns.items() if series.present.any()})
            kinds = {incident.kind for incident in scan([Batch(branch.steps, columns)])}
            assert kinds <= set(ran)


@pytest.mark.parametrize("power", [-10, -3, 4, 10])
def test_the_unit_of_the_loss_changes_nothing(power: int) -> None:
    for name in short_names():
        for branch in log_of(name).branches:
            assert brief(scan([with_loss(branch, factor=2.0**power)])) == brief(scan([branch])), name


@pytest.mark.parametrize("shift", [-64.0, -1.0, 1.0, 8.0])
def test_a_constant_in_the_loss_changes_nothing_once_the_run_knows_itself(shift: float) -> None:
    compared = 0
    for name in short_names():
        for branch in log_of(name).branches:
            expected = learned(branch, scan([branch]))
            assert learned(branch, scan([with_loss(branch, shift=shift)])) == expected, name
            compared += len(expected)
    assert compared > 10


@pytest.mark.parametrize("detector", ["loss", "gradient"])
def test_without_a_detector_real_traces_would_be_missed(
    detector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = [BY_NAME[name] for name in short_names() if name not in NOT_YET_NAMED]
    assert all(is_named(label) for label in labels)
    monkeypatch.setattr(type(getattr(Detectors(), detector)), "feed", lambda self, batch: [])
    assert not all(is_named(label) for label in labels)
