"""The weights of a training with everything on are those of one without us, bit by bit.

Each policy, with and without XLA; several replicas are in `test_replicas.py`, loops in `test_observe.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism

from training import Array, RecordingSender, batch, recorded
from trainvitals import HealthReporter
from trainvitals.probe.types import Model

pytestmark = pytest.mark.tensorflow

SIZE, STEPS, EPOCHS = 8, 21, 2
POLICIES = ("float32", "mixed_float16", "mixed_bfloat16", "float64")
SEVERAL = ("mixed_float16", "float64")  # steps an execution in these, the last of an epoch cut short


@pytest.fixture(autouse=True)
def plain_policy() -> Iterator[None]:
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.fixture
def deterministic() -> Iterator[None]:
    tf.config.experimental.enable_op_determinism()
    yield
    disable_op_determinism()


def rich_model(policy: str, jit: bool) -> Model:
    """Return a model whose step changes statistics and seeds, too; in float16 it begins with skips."""
    keras.mixed_precision.set_global_policy(policy)
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(32, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(1, dtype="float64" if policy == "float64" else "float32"),
        ]
    )
    inner = keras.optimizers.Adam(1e-3)
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**22)
    optimizer = scaled if policy == "mixed_float16" else inner
    several = 16 if policy in SEVERAL else 1
    model.compile(optimizer, "mse", jit_compile=jit, steps_per_execution=several)
    model.optimizer.build(model.trainable_variables)
    return model


class Repeating:
    """Trains one model again and again from the same start: functions that were traced are kept."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._variables = [*model.variables, *model.optimizer.variables]
        self._start = [np.asarray(one).copy() for one in self._variables]

    def fit(self, *callbacks: Any) -> list[Array]:  # noqa: ANN401 - Keras has no types
        """Train, and return the state in the end."""
        for variable, value in zip(self._variables, self._start, strict=True):
            variable.assign(value)
        options = {"batch_size": SIZE, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
        self._model.fit(*batch(SIZE * STEPS), callbacks=list(callbacks), **options)
        return [np.asarray(one).copy() for one in self._variables]


def everything_on(**options: Any) -> tuple[HealthReporter, RecordingSender]:  # noqa: ANN401
    """Return a reporter that measures weights as often as it can."""
    reporter = HealthReporter(overhead_budget=0.99, **options)
    return reporter, recorded(reporter)


def assert_equal(ours: list[Array], theirs: list[Array]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("policy", POLICIES)
def test_weights_are_the_same_bit_by_bit(policy: str, jit: bool, request: pytest.FixtureRequest) -> None:
    if not jit:  # Keras turns XLA off under deterministic operations; on a CPU it repeats anyway
        request.getfixturevalue("deterministic")
    repeating = Repeating(rich_model(policy, jit))
    reporter, sent = everything_on()
    plain, control, ours = repeating.fit(), repeating.fit(), repeating.fit(reporter)
    assert_equal(plain, control)
    assert_equal(plain, ours)
    assert sent.steps == list(range(STEPS * EPOCHS))
    assert any("layer_weight_norm" in piece.layer_columns for piece in sent.pieces)
    assert bool(sum(sent.values("skipped"))) == (policy == "mixed_float16")
    if not jit:  # under XLA a branch around the update rounds healthy steps otherwise
        assert_equal(plain, repeating.fit(everything_on(on_nonfinite="skip")[0]))
