"""Sound losses of the user's own, guarded as people guard them: a preflight has nothing to say of them."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers, ops

from sound import Program, compiled, ids, normal, said_of
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


def careful_softmax() -> tuple[Value, Value]:
    def softmax(z: Value) -> Value:
        exponentials = ops.exp(z - ops.max(z, axis=-1, keepdims=True))
        return exponentials / ops.sum(exponentials, axis=-1, keepdims=True)

    net = [layers.Dense(4), layers.Lambda(softmax)]
    return compiled(keras.Sequential(net), "categorical_crossentropy"), (normal(16, 4), np.eye(4)[ids(4, 16)])


def siamese() -> tuple[Value, Value]:
    tower = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(4)])
    a, b = keras.Input((6,)), keras.Input((6,))
    distance = layers.Lambda(
        lambda t: ops.sqrt(ops.sum(ops.square(t[0] - t[1]), axis=-1, keepdims=True) + 1e-7)
    )([tower(a), tower(b)])

    def margin(y: Value, d: Value) -> Value:
        return ops.mean(y * ops.square(d) + (1 - y) * ops.square(ops.relu(2.0 - d)))

    x = (normal(16, 6), normal(16, 6) + 1)
    return compiled(keras.Model([a, b], distance), margin), (x, ids(2, 16, 1).astype("float32"))


def guarded(y: Value, p: Value) -> Value:
    """Everything that can be written safely, as people do."""
    p = ops.clip(p, 1e-7, 1 - 1e-7)
    entropy = -y * ops.log(p) - (1 - y) * ops.log(1 - p)
    pt = y * p + (1 - y) * (1 - p)
    focal = -((1 - pt) ** 2) * ops.log(pt)
    dice = 1 - (2 * ops.sum(y * p) + 1) / (ops.sum(y) + ops.sum(p) + 1)
    spread = (p - ops.mean(p, axis=0)) / ops.sqrt(ops.var(p, axis=0) + 1e-3)
    safe = ops.where(p > 0.1, p, 1.0)
    odds = ops.where(p > 0.1, ops.log(safe), 0.0) + ops.log1p(ops.relu(p)) + ops.log(ops.softplus(p))
    stable = ops.exp(p - ops.max(p, axis=-1, keepdims=True))
    share = stable / ops.sum(stable, axis=-1, keepdims=True)
    unit = p / ops.maximum(ops.norm(p + 1, axis=-1, keepdims=True), 1e-6)
    masked = ops.sum(entropy * y) / ops.maximum(ops.sum(y), 1.0) + ops.sum(entropy * y) / ops.sum(y)
    total = entropy + focal + dice + 1e-3 * spread + odds + share + unit + masked
    return ops.mean(total) + ops.logsumexp(p) / 7 + ops.mean(ops.log(ops.square(p) + 1e-6))


def guarded_functions() -> tuple[Value, Value]:
    net = [layers.Dense(8, activation="relu"), layers.Dense(2, activation="sigmoid")]
    return compiled(keras.Sequential(net), guarded), (normal(16, 4), ids(2, 16, 2).astype("float32"))


def gaussian_likelihood() -> tuple[Value, Value]:
    def nll(y: Value, p: Value) -> Value:
        mean, log_s = p[:, :1], p[:, 1:]
        sigma = ops.softplus(log_s) + 1e-3
        return ops.mean(ops.log(sigma) + 0.5 * ops.square((y - mean) / sigma))

    net = [layers.Dense(8, activation="gelu"), layers.Dense(2, kernel_initializer="zeros")]
    return compiled(keras.Sequential(net), nll), (normal(16, 4), normal(16, 1))


def policy_gradient() -> tuple[Value, Value]:
    def loss(y: Value, p: Value) -> Value:
        taken = ops.take_along_axis(p, ops.cast(y[:, :1], "int32"), axis=1)[:, 0]
        entropy = -ops.sum(p * ops.log(p + 1e-8), axis=-1)
        return -ops.mean(ops.log(taken + 1e-8) * y[:, 1]) - 0.01 * ops.mean(entropy)

    net = [layers.Dense(8, activation="relu"), layers.Dense(3, activation="softmax")]
    y = np.stack([ids(3, 16), normal(16, 1)[:, 0]], axis=1).astype("float32")
    return compiled(keras.Sequential(net), loss), (normal(16, 4), y)


def root_of_a_mean() -> tuple[Value, Value]:
    def rmse(y: Value, p: Value) -> Value:
        return ops.sqrt(ops.mean(ops.square(y - p)))

    return compiled(keras.Sequential([layers.Dense(1)]), rmse), (normal(16, 4), normal(16, 1))


def smoothed_labels() -> tuple[Value, Value]:
    net = [layers.Dense(8, activation="relu"), layers.Dense(5, activation="softmax")]
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    return compiled(keras.Sequential(net), loss), (normal(16, 4), np.eye(5, dtype="float32")[ids(5, 16)])


def imbalanced_logits() -> tuple[Value, Value]:
    net = [
        layers.Dense(8, activation="relu"),
        layers.Dense(1, bias_initializer=keras.initializers.Constant(-4)),
    ]
    y = np.zeros((64, 1), "float32")
    y[5] = 1
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    weight = np.where(y[:, 0] > 0, 30.0, 1.0).astype("float32")
    return compiled(keras.Sequential(net), loss), (normal(64, 4), y, weight)


CLEAN: list[Program] = [
    careful_softmax,
    siamese,
    guarded_functions,
    gaussian_likelihood,
    policy_gradient,
    root_of_a_mean,
    smoothed_labels,
    imbalanced_logits,
]


@pytest.mark.parametrize("program", CLEAN, ids=lambda one: one.__name__)
def test_nothing_is_said_of_a_guarded_loss(program: Program) -> None:
    assert said_of(program) == "preflight: nothing found"


def test_what_an_installed_package_does_inside_is_its_own_affair(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "logarithms" / "losses.py"
    file.parent.mkdir(parents=True)
    file.write_text("from keras import ops\n\ndef loss(y, p):\n    return -ops.mean(y * ops.log(p))\n")
    spec = spec_from_file_location("logarithms_losses", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    model = compiled(
        keras.Sequential([layers.Dense(1, activation="sigmoid")]), lambda y, p: module.loss(y, p)
    )
    batch = (normal(16, 4), ids(2, 16, 1).astype("float32"))
    assert said_of(lambda: (model, batch)) == "preflight: nothing found"
