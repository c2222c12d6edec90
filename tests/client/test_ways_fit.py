"""Every way in which a model is trained by `fit` gives the rows that the same steps done by hand have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf

from observing import norm
from training import Array, RecordingSender, reporting
from trainvitals.probe.types import Model, Value
from ways import EMPTY_STEP, SIZE, STEPS, WAYS, Adversaries, Way, batches_of, linear, steps_by_hand

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:Gradients do not exist for variables:UserWarning"),
    pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices:UserWarning"),
]
HALF_A_BIT = 1e-7  # norms of layers travel as float32


@pytest.fixture(autouse=True)
def plain_floats() -> Iterator[None]:
    yield
    keras.config.set_floatx("float32")


def trained(way: Way, **options: Value) -> tuple[RecordingSender, Model]:
    """Train with a reporter; return what it sent, and the model."""
    model = way.make()
    model.compile(way.optimizer(), **way.compiled, **options)
    reporter, sent = reporting()
    x, *others = way.data()
    settings = {"batch_size": SIZE, "shuffle": False, "verbose": 0, "callbacks": [reporter], **way.fitted}
    model.fit(x, *others[:1], **dict(zip(["sample_weight"], others[1:], strict=False)), **settings)
    return sent, model


def assert_same_weights(model: Model, weights: Sequence[Array], rounding: float) -> None:
    for ours, theirs in zip(model.trainable_variables, weights, strict=True):
        one, other = (np.asarray(tf.cast(each, tf.float64)) for each in (ours, theirs))
        np.testing.assert_allclose(one, other, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("name", WAYS)
def test_every_row_is_what_the_step_was(name: str) -> None:
    way = WAYS[name]
    keras.config.set_floatx(way.floatx)
    sent, model = trained(way)
    expected, weights = steps_by_hand(way)
    assert sent.steps == list(range(way.steps))
    for column in ("loss", "grad_norm"):
        np.testing.assert_allclose(
            sent.values(column), [one[column] for one in expected], rtol=way.rounding, err_msg=column
        )
    for layer in way.groups:
        norms = [one["layers"][layer] for one in expected]
        found = sent.layer("layer_grad_norm", path_of(layer, sent))
        rounding = max(2 * way.rounding, HALF_A_BIT)
        np.testing.assert_allclose(found, norms, rtol=rounding, atol=1e-30, err_msg=layer)
    for column in ("grad_nonfinite", "optimizer_step"):
        assert sent.values(column) == [one[column] for one in expected], column
    scales = [one["loss_scale"] for one in expected]
    assert sent.values("loss_scale") == (scales if set(scales) != {1.0} else [])
    assert [sum(layer.parameters for layer in layers) for layers, _ in sent.layouts] == [
        sum(int(np.prod(one.shape)) for place, one in enumerate(weights) if place in watched(way))
    ]
    assert sent.messages == []
    assert_same_weights(model, weights, max(10 * way.rounding, 1e-6))


def test_a_lookup_of_nothing_has_the_gradient_zero_and_a_layer_that_is_not_called_has_none() -> None:
    way = WAYS["subclassed_embedding_class_weights"]
    sent, _ = trained(way)
    table = sent.layer("layer_grad_norm", path_of("table", sent))
    assert [step for step, norm in enumerate(table) if norm == 0.0] == [EMPTY_STEP]
    assert [layer.name.rpartition("/")[2] for layer in sent.layouts[-1][0]] == ["table", "head"]


def test_of_adversaries_each_layer_has_the_gradient_of_its_own_loss() -> None:
    model, twin = Adversaries(), Adversaries()
    for one in (model, twin):
        one.compile(keras.optimizers.SGD(0.02))
    reporter, sent = reporting()
    model.fit(*linear(), batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter])
    expected = []
    for x, y in batches_of(linear()):
        loss, critic, maker = twin.gradients_of(x, y)
        expected.append((float(loss), norm(critic), norm(maker), norm([*critic, *maker])))
        twin.optimizer.apply(critic, twin.critic.trainable_variables)
        twin.second.apply(maker, twin.maker.trainable_variables)
    found = zip(
        sent.values("loss"),
        sent.layer("layer_grad_norm", path_of("critic", sent)),
        sent.layer("layer_grad_norm", path_of("maker", sent)),
        sent.values("grad_norm"),
        strict=True,
    )
    np.testing.assert_allclose(list(found), expected, rtol=1e-5)
    assert sent.values("optimizer_step") == list(range(1, STEPS + 1))


def path_of(layer: str, sent: RecordingSender) -> str:
    """Return the path of a layer, which is within a model that Keras has named."""
    (path,) = [one.name for one in sent.layouts[-1][0] if one.name.rpartition("/")[2] == layer]
    return path


def watched(way: Way) -> set[int]:
    """Return the places of the variables that have gradients."""
    return {place for places in way.groups.values() for place in places}
