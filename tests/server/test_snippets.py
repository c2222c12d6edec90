"""The code that goes with a cause and compiles a model again, run on models of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

from trainvitals_server.catalogue import CATALOGUE
from trainvitals_server.snippets import SAFE_LOG

keras = pytest.importorskip("keras")
pytestmark = pytest.mark.tensorflow

OTHERS = {"unbounded_loss"}  # of a mean and a deviation: it wants two outputs
RECOMPILING = sorted(
    {name for name, entry in CATALOGUE.items() if "compile_again(" in entry.snippet} - OTHERS
)
WITHOUT_SCALER = ("float16_activation_overflow", "float16_overflow")  # bfloat16 needs none
LOWERING = [name for name in RECOMPILING if "learning_rate=rate" in CATALOGUE[name].snippet]
PLAIN = ("learning_rate_too_high", "dead_relu")
RATE = 0.02
Keras: TypeAlias = Any  # it has no types


def momentum() -> Keras:
    return keras.optimizers.SGD(RATE, momentum=0.9, nesterov=True)


def cosine() -> Keras:
    return keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(RATE, 100, alpha=0.1))


def adam() -> Keras:
    return keras.optimizers.Adam(RATE, beta_2=0.9, clipnorm=3.0)


MAKERS: dict[str, tuple[Callable[[], Keras], str]] = {
    "momentum": (momentum, "float32"),
    "cosine": (cosine, "float32"),
    "adam": (adam, "float32"),
    "half": (adam, "mixed_float16"),
}
X = np.random.default_rng(0).random((32, 3)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 1.5).astype("float32")


@pytest.fixture(autouse=True)
def policy() -> Iterator[None]:
    before = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(before)


def made(name: str) -> Keras:
    maker, policy_name = MAKERS[name]
    keras.config.set_dtype_policy(policy_name)
    model = keras.Sequential([
        keras.layers.Input((3,)), keras.layers.Dense(4, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
    ])  # fmt: skip
    model.compile(optimizer=maker(), loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()])
    model.fit(X, Y, verbose=0)
    return model


def after(cause: str, model: Keras) -> Keras:
    program = {"model": model, "x": X, "y": Y}
    text = CATALOGUE[cause].snippet.replace("tf.debugging.enable_check_numerics()", "")
    exec(compile(text, cause, "exec"), program)
    return program["model"]


def inner(model: Keras) -> Keras:
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        *(("half", cause) for cause in RECOMPILING),
        *((name, cause) for name in ("momentum", "cosine", "adam") for cause in PLAIN),
    ],
)
def test_a_snippet_keeps_what_it_does_not_speak_of(name: str, cause: str) -> None:
    old = made(name)
    before = inner(old).get_config()
    new = after(cause, old)
    config = inner(new).get_config()
    spoken = {"learning_rate", "epsilon", "clipnorm", "clipvalue", "global_clipnorm"}
    assert {k: v for k, v in config.items() if k not in spoken} == {
        k: v for k, v in before.items() if k not in spoken
    }
    assert type(inner(new)) is type(inner(old))
    assert (new.optimizer is inner(new)) == (old.optimizer is inner(old) or cause in WITHOUT_SCALER)
    logs = new.fit(X, Y, verbose=0).history
    assert {"accuracy", "loss"} < set(logs)
    assert any(key.startswith("auc") for key in logs)
    assert np.isfinite(logs["loss"]).all()


@pytest.mark.parametrize("cause", LOWERING)
def test_a_tenth_of_a_schedule_is_a_schedule(cause: str) -> None:
    new = after(cause, made("cosine"))
    new.fit(X, Y, epochs=3, verbose=0)
    expected = RATE / 10 * (0.9 * (1 + np.cos(np.pi * 3 / 100)) / 2 + 0.1)
    assert float(new.optimizer.learning_rate) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("cause", LOWERING)
@pytest.mark.parametrize("name", ["momentum", "half"])
def test_the_rate_is_a_tenth_of_what_it_was(name: str, cause: str) -> None:
    assert float(inner(after(cause, made(name))).learning_rate) == pytest.approx(RATE / 10)


def test_no_snippet_compiles_without_keeping_the_settings() -> None:
    ways = {name for name, entry in CATALOGUE.items() if "model.compile(" in entry.snippet}
    assert ways - set(RECOMPILING) - OTHERS == {"metric_undefined"}


def test_a_log_that_is_kept_above_zero_is_finite_at_zero() -> None:
    program: dict[str, Any] = {}
    exec(compile(SAFE_LOG, "log", "exec"), program)
    assert np.isfinite(np.asarray(program["safe_log"](np.zeros(2, "float32")))).all()
