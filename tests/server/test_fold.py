"""The fold of a run: the same incidents however its rows are cut, restarted, shifted or resumed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import FAILING, batch_of, gradual, healthy_half, learning, one_bad_batch, sudden
from trainvitals.wire import Bye, Event, Hello
from trainvitals_server.batch import Batch, Series
from trainvitals_server.fold import RunFold, scan
from trainvitals_server.incident import Incident

SERIES = ("loss", "grad_norm", "grad_nonfinite", "loss_scale", "skipped", "weight_nonfinite", "learning_rate")
NAMED_AS = {"bad_batch": "sudden_nan"}  # raised as what it was before the next batches were seen


def told(incidents: Sequence[Incident]) -> list[bytes]:
    return [msgspec.msgpack.encode(incident) for incident in incidents]


def fold_in_pieces(batch: Batch, cuts: Sequence[int], restarts: Sequence[bool]) -> list[Incident]:
    fold = RunFold("scan")
    fold.hello(Hello(run_id="scan", session_id="scan"))
    bounds = [0, *sorted(cuts), len(batch)]
    for place, (start, stop) in enumerate(pairwise(bounds)):
        fold.rows(0, "scan", batch.slice(start, stop))
        if restarts[place % len(restarts)]:
            fold = RunFold.load(fold.dump())
    return fold.incidents()


@pytest.mark.parametrize("kind", FAILING)
def test_each_failing_run_is_named(kind: str) -> None:
    incidents = [incident for incident in scan([FAILING[kind](0)]) if incident.kind != "transient_overflow"]
    assert incidents[0].kind == NAMED_AS.get(kind, kind)


@pytest.mark.parametrize("kind", FAILING)
@settings(max_examples=12)
@given(data=st.data())
def test_any_split_and_any_restart_give_the_same_incidents(kind: str, data: st.DataObject) -> None:
    batch = FAILING[kind](data.draw(st.integers(0, 3)))
    cuts = data.draw(st.lists(st.integers(0, len(batch)), max_size=12))
    restarts = data.draw(st.lists(st.booleans(), min_size=1, max_size=4))
    whole = scan([batch])
    assert whole
    assert told(fold_in_pieces(batch, cuts, restarts)) == told(whole)


@pytest.mark.parametrize("kind", FAILING)
def test_row_by_row_gives_the_same_incidents(kind: str) -> None:
    batch = FAILING[kind](1)
    assert told(fold_in_pieces(batch, range(len(batch)), [False])) == told(scan([batch]))


@pytest.mark.parametrize("kind", FAILING)
def test_nothing_later_than_the_detected_step_is_used(kind: str) -> None:
    batch = FAILING[kind](0)
    for incident in scan([batch]):
        seen = scan([batch.slice(0, incident.detected_step + 1)])
        assert (incident.id, incident.kind, incident.onset_step) in [
            (early.id, early.kind, early.onset_step) for early in seen
        ]


@pytest.mark.parametrize("kind", ["gradual_divergence", "fast_divergence", "loss_spike"])
@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
def test_the_unit_of_the_loss_does_not_matter(kind: str, factor: float) -> None:
    # The kind may change: how soon a rise reaches the end of float32 does depend on the unit.
    def summary(scale: float) -> list[tuple[int, int]]:
        loss = FAILING[kind](0).columns["loss"].values[:600] * scale
        return [(item.onset_step, item.detected_step) for item in scan([batch_of({"loss": loss})])]

    assert summary(factor) == summary(1.0)


@pytest.mark.parametrize("kind", ["gradual_divergence", "fast_divergence"])
@pytest.mark.parametrize("offset", [-5.0, 100.0])
def test_the_zero_of_the_loss_does_not_matter(kind: str, offset: float) -> None:
    loss = FAILING[kind](0).columns["loss"].values[:600]
    (plain,) = scan([batch_of({"loss": loss})])
    (moved,) = scan([batch_of({"loss": loss + offset})])
    assert (moved.kind, moved.onset_step, moved.detected_step) == (
        plain.kind,
        plain.onset_step,
        plain.detected_step,
    )


def some_batch(data: st.DataObject) -> Batch:
    rows = data.draw(st.integers(0, 40))
    names = data.draw(st.sets(st.sampled_from(SERIES)))
    columns = {}
    for name in sorted(names):
        values = data.draw(st.lists(st.floats(width=64), min_size=rows, max_size=rows))
        there = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
        columns[name] = Series(np.array(values, dtype=np.float64), np.array(there, dtype=bool))
    steps = np.cumsum(data.draw(st.lists(st.integers(1, 1000), min_size=rows, max_size=rows)), dtype=np.int64)
    return Batch(steps, columns)


@settings(max_examples=80)
@given(data=st.data())
def test_no_number_makes_a_detector_raise_or_forget(data: st.DataObject) -> None:
    batch = some_batch(data)
    cuts = data.draw(st.lists(st.integers(0, len(batch)), max_size=5))
    assert told(fold_in_pieces(batch, cuts, [True])) == told(scan([batch]))


def test_an_empty_batch_says_nothing() -> None:
    assert scan([batch_of({"loss": []}), Batch(np.array([], dtype=np.int64))]) == []


def test_a_healthy_half_precision_run_has_notes_only() -> None:
    assert {(item.kind, item.severity) for item in scan([healthy_half()])} == {("transient_overflow", "info")}


def test_one_cause_is_one_incident_with_its_consequences() -> None:
    (incident,) = scan([sudden()])
    assert [finding.kind for finding in incident.findings] == [
        "sudden_nan",
        "nonfinite_gradient",
        "nonfinite_weight",
    ]


def test_a_divergence_tells_how_many_steps_of_warning_it_gave() -> None:
    (incident,) = scan([gradual()])
    assert incident.nonfinite_step is not None
    assert incident.lead_steps == incident.nonfinite_step - incident.detected_step
    assert incident.lead_steps > 0.8 * (incident.nonfinite_step - incident.onset_step)


def test_gradients_that_were_never_finite_are_a_start_that_failed() -> None:
    norms = np.full(40, np.nan)
    batch = batch_of({"loss": learning(40), "grad_norm": norms, "grad_nonfinite": np.full(40, 16.0)})
    (incident,) = scan([batch])
    assert (incident.kind, incident.onset_step) == ("immediate_blowup", 0)
    assert incident.verdict.startswith("The gradients are not finite from the first step on (step 0);")


def test_a_divergence_that_comes_back_is_withdrawn() -> None:
    loss = learning(600)
    loss[300:320] += 40.0 * 1.1 ** np.arange(20)
    (incident,) = scan([batch_of({"loss": loss})])
    assert (incident.kind, incident.severity, incident.state) == (
        "gradual_divergence",
        "critical",
        "withdrawn",
    )


def test_one_non_finite_batch_is_over_once_the_next_are_fine() -> None:
    (incident,) = [item for item in scan([one_bad_batch()]) if item.severity == "critical"]
    assert (incident.kind, incident.state, incident.weights.usable) == ("sudden_nan", "resolved", True)
    assert incident.findings[-1].kind == "bad_batch"


def test_a_resumed_session_knows_the_band_of_its_predecessor() -> None:
    fold = RunFold("run")
    fold.hello(Hello(run_id="run", session_id="a"))
    fold.rows(0, "a", batch_of({"loss": learning(1200)}))
    fold.hello(Hello(run_id="run", session_id="b", session_ordinal=1, resume_step=1100))
    later = 5.0 * 1.5 ** np.arange(12)
    incidents = fold.rows(0, "b", batch_of({"loss": later}, steps=range(1100, 1112)))
    assert [(item.session_id, item.severity) for item in incidents] == [("b", "critical")]
    fresh = RunFold("run")
    fresh.hello(Hello(run_id="run", session_id="b"))
    assert fresh.rows(0, "b", batch_of({"loss": later[:6]}, steps=range(1100, 1106))) == []


def test_a_late_session_folds_apart_and_is_marked() -> None:
    fold = RunFold("run")
    fold.hello(Hello(run_id="run", session_id="old", late=True))
    (incident,) = fold.rows(0, "old", sudden())
    assert incident.late


def test_a_second_hello_of_a_session_changes_nothing() -> None:
    fold = RunFold("run")
    fold.hello(Hello(run_id="run", session_id="a"))
    fold.rows(0, "a", sudden())
    before = fold.dump()
    fold.hello(Hello(run_id="run", session_id="a"))
    assert fold.dump() == before


def test_rows_of_a_session_that_never_said_hello_are_folded() -> None:
    assert RunFold("run").rows(0, "unknown", sudden())


def test_a_validation_event_with_nan_is_told_once() -> None:
    fold = RunFold("run")
    event = Event(seq=1, step=29, kind="validation", data={"epoch": 0, "val_loss": float("nan")})
    (incident,) = fold.event(0, "a", event)
    assert (incident.kind, incident.severity, incident.weights.usable) == (
        "validation_nonfinite",
        "warning",
        True,
    )
    assert fold.event(0, "a", event) == []


def test_a_checkpoint_before_the_onset_is_named() -> None:
    fold = RunFold("run")
    fold.event(0, "a", Event(seq=1, step=150, kind="checkpoint", data={"path": "x"}))
    (incident,) = fold.rows(0, "a", sudden())
    assert incident.weights.last_checkpoint_step == 150


def test_a_bye_says_nothing_new() -> None:
    fold = RunFold("run")
    fold.rows(0, "a", sudden())
    assert fold.bye(0, "a", Bye(seq=9, status="finished")) == []
