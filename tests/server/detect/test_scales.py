"""A loss scale that is not carried and float16 that overflows silently, and the runs that only look so."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generators import healthy
from scaled import HEALTHY_SCALES, forgets, harder_data, not_applied, scaled_well, unscaled_twice
from traces import batch_of
from trainvitals.wire import Environment, Hello, Layer
from trainvitals_server.batch import Batch, Series
from trainvitals_server.detect.origin import Origin
from trainvitals_server.fold import RunFold, scan
from trainvitals_server.incident import Incident

SEEDS = range(10)
HALF = Environment(dtype_policy="mixed_float16", optimizer="SGD", loss_scaling=True, loss="mse")
LOOP = Environment(dtype_policy="float32", optimizer="SGD")
KINDS = ("scaler_misuse", "activation_overflow")


def found(batch: Batch, environment: Environment = HALF) -> list[Incident]:
    return [item for item in scan([batch], environment=environment) if item.kind in KINDS]


def the_one(batch: Batch, environment: Environment = HALF) -> Incident:
    (incident,) = found(batch, environment)
    return incident


def fold_in_pieces(batch: Batch, cuts: Sequence[int]) -> list[bytes]:
    fold = RunFold("scan")
    fold.hello(Hello(run_id="scan", session_id="scan", environment=HALF))
    for start, stop in pairwise([0, *sorted(cuts), len(batch)]):
        fold.rows(0, "scan", batch.slice(start, stop))
        fold = RunFold.load(fold.dump())
    return [msgspec.msgpack.encode(incident) for incident in fold.incidents()]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_scale_that_is_not_applied_is_warned_of_soon(seed: int) -> None:
    incident = the_one(not_applied(seed))
    assert (incident.kind, incident.severity, incident.onset_step) == ("scaler_misuse", "warning", 0)
    assert incident.detected_step < 50
    assert incident.causes[0].cause == "loss_scale_not_applied"


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_that_overflowed_once_did_carry_the_scale(seed: int) -> None:
    causes = [cause.cause for cause in the_one(unscaled_twice(seed)).causes]
    assert causes[:2] == ["gradients_unscaled_twice", "loss_scale_not_applied"]


@pytest.mark.parametrize("name", HEALTHY_SCALES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_scale_that_is_carried_is_left_alone(name: str, seed: int) -> None:
    assert found(HEALTHY_SCALES[name](seed)) == []


@pytest.mark.parametrize(
    ("name", "seed"), [("from_a_thousand", 474), ("from_a_thousand", 751), ("alternating_datasets", 213)]
)
def test_a_slow_start_of_a_large_loss_is_no_misuse(name: str, seed: int) -> None:
    assert found(healthy(name, seed)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_half_precision_run_that_forgets_while_its_gradient_shrinks_has_overflowed(seed: int) -> None:
    incident = the_one(forgets(seed))
    assert (incident.kind, incident.severity) == ("activation_overflow", "warning")
    assert 120 <= incident.onset_step <= 136
    assert incident.causes[0].cause == "float16_activation_overflow"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_gradient_that_grows_is_no_silent_overflow(seed: int) -> None:
    assert found(harder_data(seed)) == []


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_only_float16_overflows_silently(policy: str) -> None:
    assert found(forgets(), Environment(dtype_policy=policy)) == []


def test_the_layer_whose_gradient_lost_most_is_named() -> None:
    batch = forgets()
    norms = np.outer(batch.columns["grad_norm"].values, [0.8, 0.6])
    norms[120:, 1] *= 0.01
    layers = {"layer_grad_norm": Series(norms, np.ones(norms.shape, bool))}
    names = (Layer(name="proj"), Layer(name="head"))
    incidents = scan([Batch(batch.steps, batch.columns, layers, names)], environment=HALF, layers=names)
    assert ("activation_overflow", "head") in [(item.kind, item.layer) for item in incidents]


@pytest.mark.parametrize("made", [not_applied, unscaled_twice, forgets])
@settings(max_examples=10)
@given(data=st.data())
def test_any_split_and_restart_give_the_same_incidents(made: object, data: st.DataObject) -> None:
    batch = made(data.draw(st.integers(0, 3)))  # type: ignore[operator]
    cuts = data.draw(st.lists(st.integers(0, len(batch)), max_size=10))
    whole = fold_in_pieces(batch, [])
    assert whole
    assert fold_in_pieces(batch, cuts) == whole


@pytest.mark.parametrize("made", [not_applied, forgets])
def test_nothing_later_than_the_detected_step_is_used(made: object) -> None:
    batch = made(0)  # type: ignore[operator]
    late = the_one(batch)
    early = the_one(batch.slice(0, late.detected_step + 1))
    assert (early.id, early.onset_step) == (late.id, late.onset_step)


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
@pytest.mark.parametrize("made", [not_applied, forgets])
def test_the_unit_of_the_loss_does_not_matter(made: object, factor: float) -> None:
    batch = made(0)  # type: ignore[operator]
    columns = {
        name: Series(series.values * (factor if name in ("loss", "grad_norm") else 1), series.present)
        for name, series in batch.columns.items()
    }
    one, other = the_one(batch), the_one(Batch(batch.steps, columns))
    assert (one.kind, one.onset_step, one.detected_step) == (
        other.kind,
        other.onset_step,
        other.detected_step,
    )


def blow_up(norm: float, rate: float = 0.01) -> Batch:
    """Return a run whose loss goes from 2 to infinity in four steps."""
    loss = np.array([1.9, 4e4, 1.6e17, np.inf, np.nan])
    norms = np.array([norm, norm * 2e3, norm * 1e13, np.nan, np.nan])
    return batch_of({"loss": loss, "grad_norm": norms, "learning_rate": np.full(5, rate)})


def top_cause(batch: Batch, environment: Environment) -> str:
    return scan([batch], environment=environment)[0].causes[0].cause


def test_a_loop_whose_first_gradient_is_huge_never_unscaled_it() -> None:
    assert top_cause(blow_up(3600.0), LOOP) == "gradients_not_unscaled"


@pytest.mark.parametrize(
    ("norm", "rate", "environment"),
    [
        (3.5, 0.01, LOOP),  # an ordinary gradient
        (3600.0, 10.0, LOOP),  # no ordinary learning rate
        (3600.0, 0.01, HALF),  # Keras unscales by itself
        (3600.0, 0.01, Environment()),  # a log: nothing is known
    ],
)
def test_otherwise_the_learning_rate_is_blamed(norm: float, rate: float, environment: Environment) -> None:
    assert top_cause(blow_up(norm, rate), environment) == "learning_rate_too_high"


def test_the_origin_is_the_first_row_in_which_both_are_finite() -> None:
    origin = Origin()
    origin.feed(batch_of({"loss": [np.nan, 2.0, 3.0], "grad_norm": [1.0, np.inf, 4.0]}, steps=[5, 6, 7]))
    origin.feed(scaled_well())
    assert (origin.step, origin.loss, origin.norm) == (7, 3.0, 4.0)
