"""What the replay of the failing step proves: the cause, its place, and what it speaks against."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traces import LAYERS, batch_of, collapse, gradient_first, gradual, learning, sudden
from trainvitals.wire import Environment, Event, Hello, Layer, Layout
from trainvitals_server.autopsy_words import autopsy_lines
from trainvitals_server.batch import Batch
from trainvitals_server.catalogue import CATALOGUE
from trainvitals_server.finding import Severity
from trainvitals_server.first_bad import FirstBad, first_bad_of
from trainvitals_server.fold import RunFold
from trainvitals_server.incident import Cause, Incident
from trainvitals_server.suspects import LOSS

HALF_LAYERS = (Layer(name="embed", kind="Embedding", dtype="float16"), *LAYERS[1:])
NAN_STEP, GRADIENT_STEP = 200, 80
MUTE: Severity = "info"


def operand(
    low: float | None = None, high: float | None = None, dtype: str = "float32", **counts: int
) -> dict[str, Any]:
    return {"name": "0", "dtype": dtype, "shape": [4], "min": low, "max": high, **counts}


def operation(
    kind: str, *inputs: dict[str, Any], output: dict[str, Any] | None = None, **more: object
) -> dict[str, Any]:
    """Return the report of an operation that went wrong; NaN comes out unless something else is said."""
    return {
        "step": 0, "found": "operation", "is_reproduced": True, "operation": kind, "direction": "forward",
        "layer": "head", "file": "/home/me/losses.py", "line": 12, "inputs": inputs,
        "output": output or operand(n_nan=3), "n_bad": 3, "batch_size": 32,
    } | more  # fmt: skip


def backward(kind: str, *inputs: dict[str, Any], **more: object) -> dict[str, Any]:
    return operation(kind, *inputs, direction="backward") | more


def told(
    report: dict[str, Any],
    batch: Batch,
    step: int,
    env: Environment | None = None,
    layers: tuple[Layer, ...] = LAYERS,
) -> Incident:
    """Return the first loud incident of these rows with the report of the step."""
    fold = RunFold("run")
    fold.hello(Hello(run_id="run", session_id="s", environment=env or Environment()))
    fold.layout(0, "s", Layout(seq=1, layout_id=1, layers=list(layers)))
    fold.rows(0, "s", batch)
    fold.event(0, "s", Event(seq=2, step=step, kind="autopsy", data={**report, "step": step}))
    return next(incident for incident in fold.incidents() if incident.severity != MUTE)


def best(incident: Incident) -> Cause:
    return incident.causes[0]


def half(low: float | None = None, high: float | None = None, **counts: int) -> dict[str, Any]:
    return operand(low, high, "float16", **counts)


def one_head_spoilt() -> Batch:
    """Return rows in which one layer alone gets a bad gradient."""
    bad = np.arange(100) >= GRADIENT_STEP
    return batch_of(
        {"loss": learning(100), "grad_norm": np.where(bad, np.nan, 1.0), "grad_nonfinite": 7.0 * bad},
        bad_layers=dict.fromkeys(range(GRADIENT_STEP, 100), (1,)),
    )


POSITIVE, NEGATIVE = operand(0.1, 0.9), operand(-0.4, 0.9)
ZERO, ACROSS = operand(0.0, 0.9), operand(-2.0, 2.0)
INFINITE, MINUS = operand(n_posinf=2), operand(n_neginf=2)
FORWARD = {
    "log of zero": (operation("Log", ZERO, output=MINUS), "log_of_zero"),
    "log of what was redacted": (operation("Log", operand(), output=MINUS), "log_of_zero"),
    "log of a negative": (operation("Log", NEGATIVE), "log_of_negative"),
    "log of a redacted negative": (operation("Log", operand()), "log_of_negative"),
    "log1p of minus one": (operation("Log1p", operand(-1.0, 3.0), output=MINUS), "log_of_zero"),
    "log1p below it": (operation("Log1p", operand(-1.5, 3.0)), "log_of_negative"),
    "x log 0": (operation("Xlogy", POSITIVE, ZERO, output=MINUS), "log_of_zero"),
    "division": (operation("RealDiv", POSITIVE, ZERO, output=INFINITE), "division_by_zero"),
    "zero by zero": (operation("RealDiv", operand(0.0, 0.0), operand(0.0, 0.0)), "division_by_zero"),
    "reciprocal": (operation("Reciprocal", ACROSS, output=INFINITE), "division_by_zero"),
    "xdivy": (operation("Xdivy", POSITIVE, ZERO, output=INFINITE), "division_by_zero"),
    "one by root of zero": (operation("Rsqrt", ZERO, output=INFINITE), "division_by_zero"),
    "zero to minus one": (operation("Pow", ZERO, operand(-1.0, -1.0), output=INFINITE), "division_by_zero"),
    "root of a negative": (operation("Sqrt", NEGATIVE), "root_of_negative"),
    "inverse root of a negative": (operation("Rsqrt", NEGATIVE), "root_of_negative"),
    "broken power of a negative": (operation("Pow", NEGATIVE, operand(0.5, 0.5)), "root_of_negative"),
    "exponential": (operation("Exp", operand(-3.0, 120.0), output=INFINITE), "exp_overflow"),
    "high power": (operation("Pow", operand(1.0, 1e9), operand(9.0, 9.0), output=INFINITE), "exp_overflow"),
    "softmax": (operation("Softmax", operand(-3.0, 120.0)), "exp_overflow"),
    "masked softmax": (operation("Softmax", operand(-3.0, 2.6, n_neginf=6)), "fully_masked_row"),
    "masked softmax by hand": (
        operation("Sub", operand(-3.0, 2.6, n_neginf=6), operand(1.0, 2.6, n_neginf=1)),
        "fully_masked_row",
    ),
    "nothing but a mask": (operation("LogSoftmax", operand(None, None, n_neginf=6)), "fully_masked_row"),
    "half exponential": (operation("Exp", half(0.0, 12.0), output=half(n_posinf=1)), "exp_overflow"),
    "mask": (
        operation("AddV2", half(-356.0, 258.0), half(-65504.0, 0.0), output=half(n_neginf=2)),
        "float16_mask_overflow",
    ),
    "half product": (
        operation("MatMul", half(-300.0, 300.0), half(-9.0, 9.0), output=half(n_posinf=1)),
        "float16_activation_overflow",
    ),
    "half convolution": (operation("Conv2D", half(), output=half(n_nan=1)), "float16_activation_overflow"),
    "half sum": (
        operation("AddV2", half(0.0, 6e4), half(0.0, 6e4), output=half(n_posinf=1)),
        "float16_activation_overflow",
    ),
    "half division": (
        operation("RealDiv", half(0.0, 9.0), half(1e-5, 1.0), output=half(n_posinf=1)),
        "float16_activation_overflow",
    ),
    "class ids": (operation("SparseSoftmaxCrossEntropyWithLogits", ACROSS), "bad_label"),
    "looked up labels": (operation("GatherV2", ACROSS, operand(0, 9, "int32")), "bad_label"),
    "dropped by a where": (operation("Log", ZERO, is_unselected=True), "where_gradient"),
}  # fmt: skip
BACKWARD = {
    "root": (backward("SqrtGrad", ZERO, POSITIVE, output=INFINITE), "sqrt_gradient_at_zero"),
    "inverse root": (backward("RsqrtGrad", ZERO, POSITIVE), "sqrt_gradient_at_zero"),
    "part of a root's": (backward("RealDiv", POSITIVE, ZERO, gradient_of="Sqrt"), "sqrt_gradient_at_zero"),
    "power": (backward("Pow", ZERO, operand(-0.5, -0.5), output=INFINITE), "pow_gradient_at_zero"),
    "named power": (backward("PowGrad", ZERO), "pow_gradient_at_zero"),
    "part of a power's": (backward("Mul", ZERO, POSITIVE, gradient_of="Pow"), "pow_gradient_at_zero"),
    "where": (backward("SelectV2", ZERO, POSITIVE), "where_gradient"),
    "dropped by a where": (backward("Mul", ZERO, gradient_of="Log", is_unselected=True), "where_gradient"),
    "log's own": (backward("Reciprocal", ZERO, output=INFINITE, gradient_of="Log"), "log_of_zero"),
    "logs of a redacted zero": (backward("Reciprocal", operand(), gradient_of="Log"), "log_of_zero"),
    "quotient's own": (
        backward("RealDiv", operand(0.0, 0.1), ZERO, gradient_of="RealDiv"),
        "division_by_zero",
    ),
    "quotient of a gradient of one's own": (backward("RealDiv", POSITIVE, ZERO), "division_by_zero"),
    "arc cosine": (backward("Reciprocal", ZERO, output=INFINITE, gradient_of="Acos"), "infinite_slope"),
    "product of a zero": (backward("RealDiv", ZERO, ZERO, gradient_of="Cumprod"), "infinite_slope"),
    "division by nearly nothing": (
        backward("RealDiv", ACROSS, operand(1e-38, 1.0), output=INFINITE, gradient_of="RealDiv"),
        "division_by_zero",
    ),
    "half by nearly nothing": (
        backward("Reciprocal", half(1e-6, 1.0), output=half(n_posinf=1), gradient_of="Tan"),
        "float16_overflow",
    ),
    "half product": (backward("MatMul", half(), output=half(n_posinf=4)), "float16_overflow"),
    "product": (backward("MatMul", operand(-1e30, 1e30), output=INFINITE), "no_gradient_clipping"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_an_operation_of_the_forward_pass_proves_its_cause(name: str) -> None:
    report, cause = FORWARD[name]
    incident = told(report, sudden(), NAN_STEP)
    assert best(incident).cause == cause
    assert best(incident).confidence >= 0.8
    assert incident.layer == "head"
    assert incident.first_bad_operation == {**report, "step": NAN_STEP}


@pytest.mark.parametrize("name", BACKWARD)
def test_an_operation_of_the_backward_pass_proves_its_cause(name: str) -> None:
    report, cause = BACKWARD[name]
    incident = told(report, gradient_first(), GRADIENT_STEP)
    assert (best(incident).cause, incident.layer) == (cause, "head")


@pytest.mark.parametrize("found", ["input", "label", "sample_weight"])
def test_a_bad_part_of_the_batch_is_the_cause(found: str) -> None:
    report = {"found": found, "is_reproduced": True, "inputs": [operand(0.0, 1.0, n_nan=2)], "n_bad": 2}
    incident = told(report, sudden(), NAN_STEP)
    assert best(incident).cause == f"bad_{found}"
    assert incident.layer == ("embed" if found == "input" else LOSS)


def test_class_ids_beyond_the_last_class_are_told_as_such() -> None:
    report = {"found": "label", "is_reproduced": True, "inputs": [operand(0, 12, "int64")], "n_bad": 1}
    incident = told(report, sudden(), NAN_STEP)
    assert "outside the range that the loss is defined for" in best(incident).supports[0]


@pytest.mark.parametrize(
    ("report", "layers", "cause"),
    [
        (operation("ResourceApplyAdam", direction="update"), LAYERS, "optimizer_epsilon"),
        (operation("RealDiv", ZERO, ZERO, direction="update"), LAYERS, "optimizer_epsilon"),
        (operation("AssignSubVariableOp", direction="update"), LAYERS, "learning_rate_too_high"),
        (operation("RealDiv", ZERO, ZERO, direction="update"), HALF_LAYERS, "float16_variables"),
        ({"found": "weight", "is_reproduced": True}, HALF_LAYERS, "float16_variables"),
    ],
)  # fmt: skip
def test_what_goes_wrong_in_the_update_is_the_optimizer_s(
    report: dict[str, Any], layers: tuple[Layer, ...], cause: str
) -> None:
    assert best(told(report, gradient_first(), GRADIENT_STEP, layers=layers)).cause == cause


def test_an_id_beyond_an_embedding_is_an_input_not_a_label() -> None:
    report = operation("ResourceGather", ACROSS, layer="embed")
    assert best(told(report, sudden(), NAN_STEP, layers=HALF_LAYERS[:1])).cause == "bad_input"


def test_numbers_that_outgrow_float32_in_the_first_step_are_the_start_s() -> None:
    rows = batch_of({"loss": [np.nan] * 3, "grad_norm": [np.nan] * 3, "grad_nonfinite": [3.0] * 3})
    incident = told(operation("MatMul", operand(-1e30, 1e30), output=INFINITE), rows, 0)
    assert best(incident).cause == "initialisation"


def test_weights_that_were_bad_before_the_first_step_are_not_the_training_s() -> None:
    rows = batch_of({"loss": [np.nan] * 3, "grad_norm": [np.nan] * 3, "grad_nonfinite": [3.0] * 3})
    incident = told({"found": "weight", "layer": "hidden/kernel", "n_bad": 1}, rows, 0)
    assert (best(incident).cause, incident.layer) == ("bad_initial_weights", "hidden")
    assert (
        "Cause: the weights were NaN or infinite from the start (first `hidden/kernel`)." in incident.verdict
    )


def test_a_log_of_zero_that_a_limit_hides_from_the_loss_is_not_blamed_on_a_where() -> None:
    report = backward("Reciprocal", ZERO, output=INFINITE, gradient_of="Log")
    incident = told(report, gradient_first(), GRADIENT_STEP)
    assert best(incident).confidence >= 0.9
    assert "where" not in incident.verdict
    assert any("hides it from the loss" in text for text in best(incident).supports)


@pytest.mark.parametrize("kind", ["Sqrt", "Rsqrt", "Log"])
def test_a_nan_that_a_relu_took_for_zero_is_blamed_on_what_made_it(kind: str) -> None:
    incident = told(operation(kind, NEGATIVE), gradient_first(), GRADIENT_STEP)
    assert best(incident).cause == ("log_of_negative" if kind == "Log" else "root_of_negative")
    assert best(incident).confidence >= 0.9


@pytest.mark.parametrize(
    "report",
    [
        operation("RealDiv", POSITIVE, ZERO, layer=""),
        backward("Reciprocal", ZERO, output=INFINITE, layer="", gradient_of="Log"),
        {"found": "label", "inputs": [operand(0.0, 1.0, n_nan=2)], "n_bad": 2},
        {"found": "sample_weight", "inputs": [operand(0.0, 1.0, n_nan=2)], "n_bad": 2},
    ],
)  # fmt: skip
def test_what_is_outside_of_all_layers_is_the_loss_s_however_few_layers_it_has_spoilt(
    report: dict[str, Any],
) -> None:
    assert told({"found": "nothing"}, one_head_spoilt(), GRADIENT_STEP).layer == "hidden"
    assert told(report, one_head_spoilt(), GRADIENT_STEP).layer == LOSS


def test_a_gradient_that_belongs_to_no_known_operation_leaves_the_layer_to_the_rows() -> None:
    report = backward("Mul", ACROSS, layer="")
    assert told(report, one_head_spoilt(), GRADIENT_STEP).layer == "hidden"


def test_an_operation_that_nobody_knows_names_its_place_and_no_cause() -> None:
    incident = told(operation("Acosh", POSITIVE), sudden(), NAN_STEP)
    assert incident.layer == "head"
    assert best(incident).confidence < 0.5


def test_the_verdict_states_what_the_replay_proves() -> None:
    incident = told(operation("Log", ZERO, output=MINUS), sudden(), NAN_STEP)
    assert "Cause: the logarithm of zero, in layer `head` at losses.py:12." in incident.verdict
    assert "its result has 2 values of -Inf; its input was between 0 and 0.9 (float32)." in " ".join(
        incident.why
    )
    assert not any("gradients alone cannot name the layer" in line for line in incident.why)


def test_the_replay_speaks_against_what_the_graph_suggested() -> None:
    env = Environment(operations={"Log": ["m/prob_1/Log"], "Exp": ["m/prob_1/Exp"]}, optimizer="Adam")
    incident = told(operation("Exp", operand(0.0, 99.0), output=INFINITE), sudden(), NAN_STEP, env)
    assert [cause.cause for cause in incident.causes] == ["exp_overflow"]


def test_values_that_were_counted_are_not_doubted() -> None:
    bad = np.arange(230) >= NAN_STEP
    loss = np.where(bad, np.nan, learning(230))
    rows = batch_of({"loss": loss, "input_nonfinite": 3.0 * bad}, present={"input_nonfinite": bad})
    incident = told(operation("MatMul", ACROSS), rows, NAN_STEP)
    assert best(incident).cause == "bad_input"


def test_the_end_of_a_divergence_does_not_become_its_cause() -> None:
    rows = gradual()
    step = int(np.flatnonzero(~np.isfinite(rows.columns["loss"].values))[0])
    incident = told(operation("MatMul", operand(-1e30, 1e30), output=INFINITE), rows, step)
    assert incident.kind == "gradual_divergence"
    assert incident.first_bad_operation is not None
    assert best(incident).cause == "learning_rate_too_high"


def test_a_scaler_that_goes_down_is_told_with_what_went_wrong() -> None:
    report = operation("MatMul", half(), output=half(n_nan=9), layer="hidden")
    incident = told(report, collapse(), 12)
    assert (best(incident).cause, incident.layer) == ("float16_activation_overflow", "hidden")
    assert "Cause: an activation is beyond float16's range" in incident.verdict


def test_a_replay_that_stays_finite_changes_no_cause() -> None:
    without = told({"found": "odd"}, sudden(), 3)
    notes = ["compiled, the sum is taken in another order"]
    incident = told({"found": "nothing", "is_reproduced": False, "notes": notes}, sudden(), NAN_STEP)
    assert incident.causes == without.causes
    assert any(notes[0] in line for line in incident.why)


def test_weights_that_were_bad_before_are_unusable_since_then() -> None:
    incident = told({"found": "weight", "is_reproduced": True, "weights_bad_since": 150}, sudden(), NAN_STEP)
    assert (incident.weights.usable, incident.weights.bad_since) == (False, 150)


def test_a_bad_weight_is_told_as_its_layer_s() -> None:
    report = {"found": "weight", "is_reproduced": True, "layer": "head/kernel"}
    incident = told(report, sudden(), NAN_STEP)
    assert (incident.layer, incident.weights.bad_since) == ("head", NAN_STEP - 1)


def test_the_ways_of_a_backward_operation_are_told() -> None:
    report = FirstBad(
        step=1, found="operation", operation="RealDiv", gradient_of="Sqrt", direction="backward"
    )
    assert "`RealDiv` (a division, in the gradient of `Sqrt`), in the loss" in autopsy_lines(report)[0]


def test_samples_and_the_bundle_are_what_to_look_at_next() -> None:
    report = operation("Log", ZERO, samples=[3, 7], n_bad_samples=2, bundle="/runs/step-200")
    steps = told(report, sudden(), NAN_STEP).next
    assert "In the batch of step 200, the sample indices 3, 7 (from 0) are bad." in steps
    assert any(step.endswith("trainvitals replay /runs/step-200") for step in steps)


def test_a_redacted_report_is_told_without_ranges_and_places() -> None:
    bare = FirstBad(step=1, found="operation", operation="Log", direction="forward", layer="head")
    (line,) = autopsy_lines(bare)
    assert line.endswith("is `Log` (a logarithm), in layer `head`; its result has NaN or Inf.")


@pytest.mark.parametrize(
    "data",
    [{}, {"found": 3}, {"found": "operation", "inputs": "many"}, {"found": "operation", "line": "x" * 9}],
)
def test_a_report_that_cannot_be_read_changes_nothing(data: dict[str, Any]) -> None:
    assert told(data, sudden(), NAN_STEP).first_bad_operation is None


def test_a_report_of_another_version_keeps_what_we_do_not_read() -> None:
    report = operation("Log", ZERO, later={"field": [1.5]})
    incident = told(report, sudden(), NAN_STEP)
    assert incident.first_bad_operation == {**report, "step": NAN_STEP}
    assert first_bad_of(incident) is not None


def test_a_scale_that_sinks_for_another_reason_tells_that_reason() -> None:
    report = backward("Reciprocal", ZERO, output=INFINITE, gradient_of="Log", is_unselected=True)
    incident = told(report, collapse(), 12)
    assert [cause.cause for cause in incident.causes[:2]] == ["loss_scale_floor", "where_gradient"]
    assert incident.layer == "head"
    assert "the gradients are bad at any loss scale: `where` selects the safe branch" in incident.verdict
    assert incident.next[1] == CATALOGUE["where_gradient"].fix
