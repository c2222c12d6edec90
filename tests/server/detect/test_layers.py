"""Patterns that single layers show, each with the healthy run it must not be mistaken for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered import (
    FAILING_LAYERS,
    HEALTHY_LAYERS,
    ROWS,
    dead,
    dead_from_the_start,
    idle_head,
    layered,
    saturated_from_the_start,
    usual,
    vanishing,
)
from traces import learning
from trainvitals.wire import Hello
from trainvitals_server.batch import Batch
from trainvitals_server.detect.layer_past import LayerPast
from trainvitals_server.detect.layer_rows import BLOCK, LayerRows, column_medians
from trainvitals_server.detect.layers import LayerFold
from trainvitals_server.fold import RunFold, scan
from trainvitals_server.incident import Incident

SEEDS = range(10)
KINDS = ("vanishing_gradient", "dead_units", "saturation", "exploding_gradient")


def loud(batch: Batch) -> list[Incident]:
    """Return the incidents that somebody is told of, of the kinds that layers show."""
    layers = batch.layers
    return [item for item in scan([batch], layers=layers) if item.severity != "info" and item.kind in KINDS]


def the_one(batch: Batch) -> Incident:
    (incident,) = loud(batch)
    return incident


def fold_in_pieces(batch: Batch, cuts: Sequence[int]) -> list[bytes]:
    fold = RunFold("scan")
    fold.hello(Hello(run_id="scan", session_id="scan"))
    for start, stop in pairwise([0, *sorted(cuts), len(batch)]):
        fold.rows(0, "scan", batch.slice(start, stop))
        fold = RunFold.load(fold.dump())
    return [msgspec.msgpack.encode(incident) for incident in fold.incidents()]


@pytest.mark.parametrize("kind", FAILING_LAYERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_pattern_is_named_once_and_only_warned_of(kind: str, seed: int) -> None:
    incident = the_one(FAILING_LAYERS[kind](seed))
    assert (incident.kind, incident.severity) == (kind, "warning")


@pytest.mark.parametrize("name", HEALTHY_LAYERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_twin_is_left_alone(name: str, seed: int) -> None:
    assert loud(HEALTHY_LAYERS[name](seed)) == []


@pytest.mark.parametrize("kind", FAILING_LAYERS)
@settings(max_examples=10)
@given(data=st.data())
def test_any_split_and_restart_give_the_same_incidents(kind: str, data: st.DataObject) -> None:
    batch = FAILING_LAYERS[kind](data.draw(st.integers(0, 3)))
    cuts = data.draw(st.lists(st.integers(0, len(batch)), max_size=10))
    whole = fold_in_pieces(batch, [])
    assert whole
    assert fold_in_pieces(batch, cuts) == whole


@pytest.mark.parametrize("kind", FAILING_LAYERS)
def test_nothing_later_than_the_detected_step_is_used(kind: str) -> None:
    batch = FAILING_LAYERS[kind](0)
    late = the_one(batch)
    early = the_one(batch.slice(0, late.detected_step + 1))
    assert (early.id, early.onset_step, early.layer) == (late.id, late.onset_step, late.layer)


@pytest.mark.parametrize(
    ("kind", "layer", "onset"),
    [
        ("vanishing_gradient", "d0", 0),
        ("dead_units", "d1", 250),
        ("saturation", "d1", 256),  # the first block that is wholly so
        ("exploding_gradient", "d1", 300),
    ],
)
def test_the_layer_and_the_onset_are_named(kind: str, layer: str, onset: int) -> None:
    incident = the_one(FAILING_LAYERS[kind](0))
    assert incident.layer == layer
    assert abs(incident.onset_step - onset) <= BLOCK
    assert layer in incident.verdict


@pytest.mark.parametrize("factor", [2.0**-30, 2.0**30])
@pytest.mark.parametrize("kind", FAILING_LAYERS)
def test_the_unit_of_loss_and_gradients_does_not_matter(kind: str, factor: float) -> None:
    batch = FAILING_LAYERS[kind](0)
    norms = batch.layer_columns["layer_grad_norm"].values
    scaled = layered(norms * factor, batch.columns["loss"].values * factor)
    one, other = the_one(batch), the_one(scaled)
    assert (one.kind, one.onset_step, one.detected_step) == (
        other.kind,
        other.onset_step,
        other.detected_step,
    )


def test_two_layers_dead_at_once_are_one_incident_that_names_both() -> None:
    incident = the_one(dead())
    assert incident.onset_step == 250
    assert incident.verdict.startswith("Layer d1 gets no gradient at all since step 250")
    assert "d0, further from the loss, gets none either" in incident.verdict
    assert "and so is that of d0" in incident.why[0]
    assert incident.causes[0].cause == "dead_relu"
    assert any("activations would prove it" in line for line in incident.causes[0].against)


def test_a_layer_that_comes_back_to_life_ends_it() -> None:
    batch = dead()
    norms = batch.layer_columns["layer_grad_norm"].values.copy()
    norms[320:, :2] = 1.0
    incident = the_one(layered(norms, batch.columns["loss"].values))
    assert (incident.kind, incident.state) == ("dead_units", "resolved")


def test_a_gradient_that_comes_back_ends_the_vanishing() -> None:
    batch = vanishing()
    norms = batch.layer_columns["layer_grad_norm"].values.copy()
    norms[200:] = usual(10)[200:]
    incident = the_one(layered(norms, batch.columns["loss"].values))
    assert (incident.kind, incident.state) == ("vanishing_gradient", "resolved")


def test_layers_without_a_gradient_since_the_start_are_told_so() -> None:
    incident = the_one(dead_from_the_start())
    assert (incident.kind, incident.onset_step, incident.layer) == ("dead_units", 0, "d1")
    assert "since the first step" in incident.verdict
    assert "initialisation" in [cause.cause for cause in incident.causes]


def test_a_cliff_between_two_layers_is_saturation_and_not_depth() -> None:
    incident = the_one(saturated_from_the_start())
    assert (incident.kind, incident.layer) == ("saturation", "d1")
    assert incident.causes[0].cause == "saturated_activation"


def test_a_fade_over_many_layers_is_depth() -> None:
    assert the_one(vanishing()).causes[0].cause == "vanishing_depth"


def test_a_head_without_work_is_on_the_page_only() -> None:
    batch = idle_head()
    assert loud(batch) == []
    assert [item.kind for item in scan([batch])] == ["dead_units"]


def test_gradients_that_are_not_finite_are_no_business_of_the_layers() -> None:
    norms = usual(4)
    norms[200:] = np.nan
    norms[200:, 0] = 0.0
    findings = [finding for item in scan([layered(norms, learning(ROWS))]) for finding in item.findings]
    assert findings
    assert not [finding for finding in findings if finding.kind in KINDS]


def test_other_layers_begin_afresh() -> None:
    fold, batch = LayerFold(), dead()
    assert fold.feed(batch.slice(0, 255)) == []
    other = layered(usual(3), learning(ROWS), first_step=255)
    assert fold.feed(other) == []


@given(st.lists(st.lists(st.one_of(st.just(np.nan), st.floats(0, 1e30)), min_size=3, max_size=3), min_size=1))
def test_medians_of_columns_are_those_of_numpy(rows: list[list[float]]) -> None:
    values = np.array(rows)
    known = ~np.isnan(values).all(axis=0)
    medians = column_medians(values)
    assert np.isnan(medians[~known]).all()
    np.testing.assert_allclose(medians[known], np.nanmedian(values[:, known], axis=0), rtol=1e-12)


def test_rows_without_layers_make_no_block() -> None:
    batch = layered(usual(2, rows=40), learning(40), present=np.zeros((40, 2)))
    assert list(LayerRows().take(batch)) == []


@given(st.lists(st.one_of(st.just(np.nan), st.floats(0, 1e300)), min_size=1))
def test_a_past_keeps_three_digits_of_each_norm(norms: list[float]) -> None:
    past = LayerPast(2)
    past.add(np.array(norms))
    expected = np.where(np.array(norms) < 1e-37, 0.0, np.minimum(norms, 3.39e38))
    np.testing.assert_allclose(past.latest(), expected, rtol=2**-8, atol=1e-37)


def test_the_typical_norms_are_the_medians_of_what_was_above_zero() -> None:
    past = LayerPast(3)
    for row in ([9.0, 9.0, np.nan], [1.0, 0.0, np.nan], [2.0, 8.0, np.nan], [4.0, 0.0, 5.0]):
        past.add(np.array(row))
    np.testing.assert_array_equal(past.typical(), [2.0, 8.0, 5.0])
    np.testing.assert_array_equal(past.typical(2), [2.0, np.nan, np.nan])


@pytest.mark.parametrize("every", [1, 3])
def test_the_state_of_a_run_with_two_hundred_layers_stays_small(every: int) -> None:
    rows = 12_000
    there = np.zeros((rows, 200))
    there[::every] = 1
    fold = RunFold("run")
    fold.rows(0, "a", layered(usual(200, rows), learning(rows), present=there))
    assert len(fold.sessions["0/a"].snapshots) > 10
    assert len(fold.dump()) < 200_000


def test_a_resumed_session_knows_the_layers_of_the_one_before() -> None:
    fold, norms = RunFold("run"), usual(4, rows=900)
    fold.hello(Hello(run_id="run", session_id="a"))
    fold.rows(0, "a", layered(norms[:800], learning(800)))
    fold.hello(Hello(run_id="run", session_id="b", session_ordinal=1, resume_step=780))
    burst = norms[780:860].copy()
    burst[:, 1] *= 1e7
    batch = layered(burst, learning(80), first_step=780)
    (incident,) = fold.rows(0, "b", replace(batch, columns={"loss": batch.columns["loss"]}))
    assert (incident.kind, incident.layer) == ("exploding_gradient", "d1")
