"""What a user is told: verdict, causes in order, the layer, the weights, and texts for every cause."""

from __future__ import annotations

import numpy as np
import pytest

from traces import (
    LAYERS,
    batch_of,
    collapse,
    epsilon,
    gradient_first,
    gradual,
    learning,
    one_bad_batch,
    sudden,
)
from trainvitals.wire import Environment, Event, Hello, Layer
from trainvitals_server.batch import Batch
from trainvitals_server.case import Context, Guess
from trainvitals_server.catalogue import CATALOGUE
from trainvitals_server.causes import open_case, with_texts
from trainvitals_server.fold import RunFold, scan
from trainvitals_server.incident import Incident
from trainvitals_server.suspects import LOSS, suspects_of
from trainvitals_server.verdicts import VERDICTS

HALF = "mixed_float16"
MASK = "functional_1/attention_1/Const"
ATTENTION = (Layer(name="attention", kind="Attention"), Layer(name="head", kind="Dense"))


def environment(operations: dict[str, list[str]], policy: str = "float32") -> Environment:
    return Environment(operations=operations, dtype_policy=policy, optimizer="Adam")


def loud(batch: Batch, env: Environment | None = None, layers: tuple[Layer, ...] = ()) -> Incident:
    found = [item for item in scan([batch], environment=env, layers=layers) if item.severity != "info"]
    return found[0]


def nan_row(rows: int = 200, **flags: float) -> Batch:
    """Return a run whose loss and gradients are NaN in its last row, with these counts in it."""
    last = np.arange(rows) == rows - 1
    loss = np.where(last, np.nan, learning(rows))
    columns = {"loss": loss, "grad_norm": np.where(last, np.nan, 1.0), "grad_nonfinite": 4.0 * last}
    columns |= {name: np.full(rows, value) for name, value in flags.items()}
    present = {name: last for name in flags if name.endswith("_nonfinite")}
    return batch_of(columns, present=present)


def test_a_half_precision_mask_is_named_with_its_layer() -> None:
    incident = loud(
        nan_row(loss_scale=1024.0), environment({"float16_limit_constant": [MASK]}, HALF), ATTENTION
    )
    assert (incident.causes[0].cause, incident.layer) == ("float16_mask_overflow", "attention")


def test_a_limit_constant_says_nothing_in_float32() -> None:
    incident = loud(nan_row(), environment({"float16_limit_constant": [MASK]}), ATTENTION)
    assert "float16_mask_overflow" not in [cause.cause for cause in incident.causes]


def test_the_log_of_a_loss_that_became_small_is_log_of_zero() -> None:
    incident = loud(nan_row(), environment({"Log": ["compile_loss/raw_bce/Log"]}))
    assert (incident.causes[0].cause, incident.layer) == ("log_of_zero", LOSS)


def test_a_log_that_fails_in_the_first_step_is_log_of_negative() -> None:
    incident = loud(nan_row(rows=1), environment({"Log": ["compile_loss/fn/Log"]}))
    assert incident.causes[0].cause == "log_of_negative"


def test_the_log_of_a_loss_of_keras_is_an_unlikely_culprit() -> None:
    incident = loud(nan_row(), environment({"Log": ["compile_loss/categorical_crossentropy/Log"]}))
    (cause,) = [cause for cause in incident.causes if cause.cause == "log_of_zero"]
    assert cause.confidence < 0.3
    assert cause.against


def test_bad_inputs_are_proven_by_their_count() -> None:
    incident = loud(nan_row(input_nonfinite=3.0), environment({"Log": ["compile_loss/raw_bce/Log"]}))
    assert incident.causes[0].cause == "bad_input"
    assert incident.causes[0].confidence > 0.9


def test_inputs_that_were_counted_and_fine_speak_for_the_operation() -> None:
    incident = loud(nan_row(input_nonfinite=0.0), environment({"Log": ["compile_loss/raw_bce/Log"]}))
    assert "the inputs of this batch are finite" in incident.causes[0].supports


def test_bad_labels_are_proven_by_their_count() -> None:
    assert loud(nan_row(label_nonfinite=1.0)).causes[0].cause == "bad_label"


def test_sparse_labels_under_xla_are_suspected() -> None:
    env = Environment(loss="SparseCategoricalCrossentropy(from_logits=True)", jit_compile=True)
    assert loud(nan_row(input_nonfinite=0.0), env).causes[0].cause == "bad_label"


def test_a_gradient_that_goes_first_points_at_a_square_root() -> None:
    incident = loud(gradient_first(), environment({"Sqrt": ["functional/euclid_1/Sqrt"], "Log": []}))
    assert (incident.causes[0].cause, incident.layer) == ("sqrt_gradient_at_zero", "euclid")


def test_a_softmax_by_hand_points_at_the_exponential() -> None:
    operations = {"Exp": ["m/naive_softmax_1/Exp"], "RealDiv": ["m/naive_softmax_1/truediv"]}
    assert loud(nan_row(), environment(operations)).causes[0].cause == "exp_overflow"


def test_a_divergence_blames_the_learning_rate_and_says_which() -> None:
    loss = gradual().columns["loss"].values
    incident = loud(batch_of({"loss": loss, "learning_rate": np.full(len(loss), 0.1)}))
    assert incident.causes[0].cause == "learning_rate_too_high"
    assert "the learning rate was 0.1" in incident.causes[0].supports


def test_clipping_that_is_set_is_not_missed() -> None:
    env = Environment(optimizer="SGD", optimizer_config={"clipnorm": 1.0})
    assert "no_gradient_clipping" not in [cause.cause for cause in loud(gradual(), env).causes]


@pytest.mark.parametrize(("value", "sure"), [(1e-16, True), (1e-4, False)])
def test_epsilon_is_blamed_by_its_size(value: float, sure: bool) -> None:
    env = Environment(optimizer="Adam", optimizer_config={"epsilon": value})
    (cause,) = [cause for cause in loud(epsilon(), env).causes if cause.cause == "optimizer_epsilon"]
    assert (cause.confidence > 0.8) is sure


def test_some_bad_layers_name_the_first_going_back_from_the_loss() -> None:
    incident = loud(collapse(), layers=LAYERS)
    assert (incident.layer, incident.first_bad_layers) == ("embed", ["embed"])


def test_all_bad_layers_at_once_are_told_honestly() -> None:
    incident = loud(sudden(), layers=LAYERS)
    assert incident.layer is None
    assert any("the gradients alone cannot name the layer" in line for line in incident.why)


def test_weights_are_bad_since_the_first_non_finite_update() -> None:
    weights = loud(gradient_first()).weights
    assert (weights.usable, weights.bad_since) == (False, 80)


def test_weights_survive_what_the_scaler_skipped() -> None:
    assert loud(one_bad_batch()).weights.usable is True


def test_a_loss_alone_cannot_tell_about_the_weights() -> None:
    loss = learning(100)
    loss[60:] = np.nan
    assert loud(batch_of({"loss": loss})).weights.usable is None


def test_verdicts_name_the_step_and_the_numbers() -> None:
    assert loud(gradual()).verdict.startswith("The loss diverges gradually since step 3")
    assert "at step 200" in loud(sudden()).verdict
    assert "the loss followed at step 81" in loud(gradient_first()).verdict


@pytest.mark.parametrize("cause", CATALOGUE)
def test_every_cause_has_a_fix_and_code_that_compiles(cause: str) -> None:
    told = with_texts(open_case(loud(gradual()), Context()), Guess(cause, 0.5))
    assert told.fix.endswith(".")
    compile(told.snippet, cause, "exec")
    assert told.snippet


def test_every_verdict_is_one_line() -> None:
    for batch in (gradual(), sudden(), gradient_first(), collapse(), epsilon(), one_bad_batch()):
        for incident in scan([batch]):
            assert incident.kind in VERDICTS
            assert "\n" not in incident.verdict
            assert "?" not in incident.verdict


def test_an_operation_inside_a_layer_belongs_to_it() -> None:
    (suspect,) = suspects_of(environment({"AddV2": ["functional_3_1/attention_1/add"]}), ATTENTION)
    assert (suspect.layer, suspect.guarded) == ("attention", False)


def test_a_normalisation_layer_guards_its_root() -> None:
    layers = (Layer(name="norm", kind="LayerNormalization"),)
    (suspect,) = suspects_of(environment({"Rsqrt": ["model_1/norm_1/Rsqrt"]}), layers)
    assert suspect.guarded


def test_the_headline_names_the_likely_cause() -> None:
    said = loud(nan_row(input_nonfinite=20.0)).verdict
    assert said.startswith("The loss is NaN at step 199; at step 198 it was 0.")
    assert said.endswith("within its usual range. Cause: this batch has NaN or infinite inputs (20 values).")


@pytest.mark.parametrize(
    ("count", "start"), [(1.0, "1 label value of this batch is"), (2.0, "2 label values")]
)
def test_bad_labels_are_to_be_found_not_to_be_scaled(count: float, start: str) -> None:
    first = loud(nan_row(label_nonfinite=count)).next[0]
    assert first.startswith(start)
    assert first.endswith("NaN/Inf: find them with np.flatnonzero(~np.isfinite(y)).")


def test_of_layers_that_went_in_one_step_the_suspect_is_first() -> None:
    env = environment({"Log": ["functional_1/hidden_1/Log"]})
    incident = loud(sudden(), env, LAYERS)
    assert incident.first_bad_layers == ["hidden", "head", "embed"]
    assert any("in the same step" in line and "points at `hidden`" in line for line in incident.why)


def test_nothing_is_said_twice() -> None:
    for batch in (gradual(), sudden(), gradient_first(), collapse(), epsilon(), one_bad_batch()):
        for incident in scan([batch], layers=LAYERS):
            said = [*incident.why, *incident.next]
            assert len(said) == len(set(said))
            assert not {line for cause in incident.causes for line in cause.supports} & set(said)


def validated(operations: dict[str, list[str]]) -> Incident:
    fold = RunFold("run")
    fold.hello(Hello(run_id="run", session_id="s", environment=environment(operations)))
    fold.rows(0, "s", batch_of({"loss": learning(60)}))
    fold.event(0, "s", Event(seq=1, step=59, kind="validation", data={"val_loss": float("nan")}))
    return next(item for item in fold.incidents() if item.kind == "validation_nonfinite")


def test_a_nan_of_the_validation_points_at_a_division_of_the_model_itself() -> None:
    incident = validated({"RealDiv": ["sequential_1/norm_1/truediv", "compile_loss/mse/truediv"]})
    assert (incident.causes[0].cause, incident.layer) == ("division_by_zero", "norm")
    assert incident.causes[0].confidence < 0.5
    assert incident.causes[0].against


def test_a_nan_of_the_validation_that_nothing_explains_says_how_to_find_it() -> None:
    incident = validated({"RealDiv": ["compile_loss/mse/truediv"]})
    assert incident.causes[0].cause == "unknown"
    assert "model.evaluate" in incident.next[0]


def test_a_divergence_that_begins_in_one_step_may_be_one_batch() -> None:
    loss = learning(300)
    loss[250:] = 1e6 * 1e3 ** np.arange(50.0)
    (outlier,) = [cause for cause in loud(batch_of({"loss": loss})).causes if cause.cause == "data_outlier"]
    assert outlier.confidence >= 0.6
    assert "data_outlier" not in [cause.cause for cause in loud(gradual()).causes]
