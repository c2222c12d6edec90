"""`Reporter` where there is no TensorFlow: norms and counts by numpy, of whatever numpy takes."""

from __future__ import annotations

import numpy as np
import pytest

from training import Array, RecordingSender, recorded
from trainvitals.numpy_loop import Reporter, as_array


class OnADevice:
    """A tensor as PyTorch has them: on a graph, on a device, and of a type that numpy does not know."""

    def __init__(self, values: Array, is_at_home: bool = False, is_known: bool = False) -> None:
        self.values, self.is_at_home, self.is_known = values, is_at_home, is_known

    def detach(self) -> OnADevice:
        return self

    def cpu(self) -> OnADevice:
        return OnADevice(self.values, True, self.is_known)

    def float(self) -> OnADevice:
        return OnADevice(self.values, self.is_at_home, True)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        if not (self.is_at_home and self.is_known):
            raise TypeError("not here, or not of a type that numpy knows")
        return self.values


def reporting(**options: object) -> tuple[Reporter, RecordingSender]:
    reporter = Reporter(console=False, **options)  # type: ignore[arg-type]
    return reporter, recorded(reporter)


def test_losses_norms_and_counts_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    variables: list[Array] = [np.zeros((3, 4), np.float32), np.zeros(4, np.float16)]
    steps = [[rng.normal(size=one.shape).astype(one.dtype) for one in variables] for _ in range(5)]
    reporter, sent = reporting()
    with reporter:
        for number, gradients in enumerate(steps):
            reporter.step(loss=np.float32(number), gradients=gradients, variables=variables, loss_scale=4.0)
    flat = [np.concatenate([one.ravel().astype(np.float64) for one in gradients]) for gradients in steps]
    assert sent.steps == [0, 1, 2, 3, 4]
    assert sent.values("loss") == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(
        sent.values("grad_norm"), [np.linalg.norm(one) / 4 for one in flat], rtol=1e-12
    )
    bias = [np.linalg.norm(gradients[1].astype(np.float64)) / 4 for gradients in steps]
    np.testing.assert_allclose(sent.layer("layer_grad_norm", "variable_1"), bias, rtol=1e-12)
    assert sent.values("loss_scale") == [4.0] * 5
    assert [layer.parameters for layer in sent.layouts[-1][0]] == [12, 4]
    assert sent.byes == [("finished", 4, "")]


def test_extreme_and_bad_gradients_are_not_bent() -> None:
    reporter, sent = reporting()
    variables = [np.zeros(4)]
    bad = np.array([np.nan, np.inf, 1.0, -np.inf])
    with reporter:
        for gradient in (np.full(4, 1e200), np.full(4, 1e-200), bad):
            reporter.step(loss=1.0, gradients=[gradient], variables=variables)
        reporter.step(loss=float("nan"), gradients=[None], variables=variables)
    norms = sent.values("grad_norm")
    assert norms[:2] == pytest.approx([2e200, 2e-200], rel=1e-12)
    assert not np.isfinite(norms[2])
    assert sent.values("grad_nonfinite") == [0, 0, 3]
    assert np.isnan(sent.values("loss")[3])
    assert 3 not in sent.series("grad_norm"), "a gradient that is None is missing, not zero"


def test_tensors_come_off_their_graph_and_device() -> None:
    values = np.array([3.0, 4.0], np.float32)
    np.testing.assert_array_equal(as_array(OnADevice(values)), values)
    with pytest.raises(TypeError):
        as_array(object())


def test_odd_values_are_left_out_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    reporter, sent = reporting()
    with reporter:
        reporter.step(loss="much")
        reporter.step(loss=1.0, metrics={"accuracy": 0.5, "name": "x"})
        reporter.step(loss=2.0, step=0)
    assert sent.values("loss") == [1.0]
    assert sent.values("accuracy") == [0.5]
    assert sent.messages == ["left out: 1 x loss, 1 x metric, 1 x step"]
    assert len(caplog.records) == 3


def test_a_bad_step_can_ask_the_loop_to_stop() -> None:
    reporter, sent = reporting(on_nonfinite="stop")
    with reporter:
        reporter.step(loss=1.0)
        assert not reporter.stop_requested
        reporter.step(loss=float("inf"))
        assert reporter.stop_requested
    assert sent.byes == [("stopped", 1, "a step went non-finite")]


def test_many_steps_with_new_arrays_make_one_layout() -> None:
    reporter, sent = reporting()
    with reporter:
        for _ in range(50):
            reporter.step(loss=1.0, gradients=[np.ones(2)], variables=[np.zeros(2)])
    assert len(sent.layouts) == 1
