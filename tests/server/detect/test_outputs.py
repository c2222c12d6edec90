"""What layers gave out: it shows trouble by itself, and proves or refutes what gradients have given away."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from given_out import (
    FAILING_OUTPUTS,
    HEALTHY_OUTPUTS,
    UNBENT,
    USUAL,
    cut_elsewhere,
    dead_relu,
    growing_half,
    with_outputs,
)
from layered import ROWS, dead, layered, usual
from traces import learning
from trainvitals.wire import Environment, Hello
from trainvitals_server.batch import Batch, Series
from trainvitals_server.detect.outputs import FLOAT16_END, NEAR_END
from trainvitals_server.fold import RunFold, scan
from trainvitals_server.incident import Cause, Incident

SEEDS = range(4)
KINDS = ("dead_units", "saturation", "activation_overflow", "vanishing_gradient")
PROVEN = 0.95


def incidents(batch: Batch) -> list[Incident]:
    found = scan([batch], layers=batch.layers)
    return [item for item in found if item.kind in KINDS and item.severity != "info"]


def the_one(batch: Batch) -> Incident:
    (incident,) = incidents(batch)
    return incident


def cause(incident: Incident, name: str) -> Cause:
    return next(one for one in incident.causes if one.cause == name)


def fold_in_pieces(batch: Batch, cuts: Sequence[int]) -> list[bytes]:
    fold = RunFold("scan")
    fold.hello(Hello(run_id="scan", session_id="scan"))
    for start, stop in pairwise([0, *sorted(cuts), len(batch)]):
        fold.rows(0, "scan", batch.slice(start, stop))
        fold = RunFold.load(fold.dump())
    return [msgspec.msgpack.encode(incident) for incident in fold.incidents()]


@pytest.mark.parametrize("name", FAILING_OUTPUTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_trouble_is_named_once_with_its_layer(name: str, seed: int) -> None:
    make, kind, layer = FAILING_OUTPUTS[name]
    incident = the_one(make(seed))
    assert (incident.kind, incident.severity, incident.layer) == (kind, "warning", layer)


@pytest.mark.parametrize("name", HEALTHY_OUTPUTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_run_is_left_alone(name: str, seed: int) -> None:
    assert incidents(HEALTHY_OUTPUTS[name](seed)) == []


@pytest.mark.parametrize("name", [*FAILING_OUTPUTS, "cut_elsewhere"])
@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_any_split_and_restart_give_the_same_incidents(name: str, data: st.DataObject) -> None:
    batch = cut_elsewhere() if name == "cut_elsewhere" else FAILING_OUTPUTS[name][0]()
    cuts = data.draw(st.lists(st.integers(0, len(batch)), max_size=10))
    whole = fold_in_pieces(batch, [])
    assert whole
    assert fold_in_pieces(batch, cuts) == whole


@pytest.mark.parametrize(("name", "silent"), [("dead_relu", "d1"), ("dead_behind", "act0")])
def test_units_that_do_not_fire_prove_a_dead_relu_also_where_it_is_a_layer_of_its_own(
    name: str, silent: str
) -> None:
    incident = the_one(FAILING_OUTPUTS[name][0]())
    first = incident.causes[0]
    assert first.cause == "dead_relu"
    assert first.confidence >= PROVEN
    assert f"no unit of {silent} fired" in first.supports[0]
    assert f"no unit of {silent} fired" in incident.verdict
    assert "likely dead" not in incident.verdict
    shown = next(item for item in incident.evidence if item.series == "layer_dead_share")
    assert (shown.value, shown.layer) == (1.0, silent)
    assert incident.onset_step <= (shown.step or 0) <= incident.detected_step


def test_units_that_fire_refute_a_dead_relu() -> None:
    incident = the_one(cut_elsewhere())
    assert incident.causes[0].cause == "unknown"
    assert "its units are not dead" in incident.verdict
    assert cause(incident, "dead_relu").confidence < 0.1
    assert "of the units of act0 fired" in cause(incident, "dead_relu").against[0]


def test_without_measured_outputs_the_words_stay_careful() -> None:
    batch = dead_relu()
    kept = {"layer_grad_norm": batch.layer_columns["layer_grad_norm"]}
    incident = the_one(Batch(batch.steps, batch.columns, kept, batch.layers))
    assert "likely dead" in incident.verdict
    assert cause(incident, "dead_relu").confidence < PROVEN
    assert "were not measured" in cause(incident, "dead_relu").against[0]


def test_outputs_that_were_last_measured_before_the_onset_prove_nothing() -> None:
    incident = the_one(with_outputs(dead(), dead=USUAL, saturated=UNBENT, sizes={}, every=240))
    assert incident.onset_step == 250
    assert "likely dead" in incident.verdict


@pytest.mark.parametrize("name", ["bent_tanh", "stuck_at_limits"])
def test_outputs_at_their_limits_prove_a_saturated_activation(name: str) -> None:
    incident = the_one(FAILING_OUTPUTS[name][0]())
    assert incident.causes[0].cause == "saturated_activation"
    assert incident.causes[0].confidence >= PROVEN
    assert "of the outputs of d2 was at the limits of its tanh" in incident.causes[0].supports[0]
    assert "likely saturated" not in incident.verdict


def test_a_growth_is_told_before_float16_ends_and_its_end_belongs_to_it() -> None:
    batch = growing_half()
    incident = the_one(batch)
    sizes = batch.layer_columns["layer_activation_absmax"].values[:, 2]
    assert NEAR_END <= sizes[incident.detected_step] < FLOAT16_END / 4
    assert incident.causes[0].cause == "float16_activation_overflow"
    assert incident.causes[0].confidence >= PROVEN
    assert "grow towards the end of float16" in incident.verdict


def test_what_grew_and_came_back_is_over() -> None:
    rise = 8.0 * 1.03 ** np.arange(ROWS)
    sizes = np.where(rise < 30_000, rise, 500.0)
    batch = with_outputs(
        layered(usual(4), learning(ROWS)), dead={}, saturated={}, sizes={"d1": sizes}, dtype="float16"
    )
    assert the_one(batch).state == "resolved"


def test_a_silent_overflow_is_proven_by_outputs_that_were_not_finite_and_refuted_by_small_ones() -> None:
    rows = np.arange(ROWS)
    loss = np.where(rows < 250, 2.0 * 0.98**rows + 0.05, np.minimum(0.05 + 0.05 * (rows - 250), 2.0))
    norms = usual(4)
    norms[250:] *= 0.05
    environment = Environment(dtype_policy="mixed_float16")

    def told(size: float, before: float = 30.0) -> Incident:
        sizes = {"d1": np.where(rows < 250, before, size)}
        batch = with_outputs(layered(norms, loss), dead={}, saturated={}, sizes=sizes, dtype="float16")
        found = scan([batch], environment=environment, layers=batch.layers)
        return next(item for item in found if item.kind == "activation_overflow")

    assert told(np.inf).causes[0].cause == "float16_activation_overflow"
    assert told(np.inf).causes[0].confidence >= PROVEN
    assert cause(told(40.0), "float16_activation_overflow").confidence < 0.1
    earlier = told(40.0, before=60_000.0)  # while the loss was at its level: no news
    assert cause(earlier, "float16_activation_overflow").confidence < 0.1


def test_a_nan_in_every_gradient_is_none_of_a_single_layer_beside_layers_without_a_gradient() -> None:
    batch = HEALTHY_OUTPUTS["sparse"]()
    loss, norms = batch.columns["loss"], batch.layer_columns["layer_grad_norm"]
    bad = np.where(np.arange(ROWS)[:, np.newaxis] >= 300, 8.0, 0.0) * norms.present
    lost = np.where(np.arange(ROWS) >= 300, np.nan, loss.values)
    columns = {**batch.layer_columns, "layer_grad_nonfinite": Series(bad, norms.present)}
    every = {**batch.columns, "loss": Series(lost, loss.present)}
    found = scan([Batch(batch.steps, every, columns, batch.layers)], layers=batch.layers)
    assert found[0].kind == "sudden_nan"
    assert len(found[0].first_bad_layers) == 4
    assert found[0].layer is None
