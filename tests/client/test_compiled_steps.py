"""What a loop's own compiled step consists of, found by what it trains; nothing of the user's is called."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import keras
import pytest
import tensorflow as tf

from training import batch, recorded, small_model
from trainvitals import Reporter

pytestmark = pytest.mark.tensorflow


def step_of(model: keras.Model, optimizer: Any) -> Any:  # noqa: ANN401
    """Return a compiled step with a logarithm in its loss."""

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def step(x: Any, y: Any) -> Any:  # noqa: ANN401
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(y * tf.math.log(tf.sigmoid(model(x))))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss, gradients

    return step


class Trainer:
    """Trains by a method that is compiled."""

    def __init__(self, model: keras.Model, optimizer: Any) -> None:  # noqa: ANN401
        self.model, self.optimizer, self.calls = model, optimizer, 0

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def one(self, x: Any, y: Any) -> Any:  # noqa: ANN401
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.exp(self.model(x)) - y)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss, gradients

    def train(self, reporter: Reporter, x: Any, y: Any) -> None:  # noqa: ANN401
        """Report one step."""
        loss, gradients = self.one(x, y)
        reporter.step(loss=loss, gradients=gradients, variables=self.model.trainable_variables)


def built() -> tuple[keras.Model, Any]:
    model, optimizer = small_model(), keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def test_the_function_that_was_called_tells_what_can_fail_in_it_and_not_in_the_optimizer() -> None:
    model, optimizer = built()
    step, (x, y) = step_of(model, optimizer), batch()
    evaluate = tf.function(lambda values: tf.sqrt(values))  # no step: it has no gradient
    evaluate(x)
    with Reporter() as reporter:
        sent = recorded(reporter)
        loss, gradients = step(x, y)
        reporter.step(loss=loss, gradients=gradients, variables=model.trainable_variables)
    (_, environment) = sent.layouts[-1]
    assert environment is not None
    assert environment.operations["Log"] == ["Log"]
    assert "Sqrt" not in environment.operations  # Adam's, and that of the other function


def test_a_method_is_found_as_well() -> None:
    trainer, (x, y) = Trainer(*built()), batch()
    with Reporter() as reporter:
        sent = recorded(reporter)
        trainer.train(reporter, x, y)
    (_, environment) = sent.layouts[-1]
    assert environment is not None
    assert environment.operations["Exp"] == ["Exp"]


def test_the_step_of_another_model_is_none_of_ours_and_nothing_is_kept_alive() -> None:
    model, optimizer = built()
    other, others = built()
    step, (x, y) = step_of(other, others), batch()
    step(x, y)
    with Reporter() as reporter:
        sent = recorded(reporter)
        gradients = [tf.zeros_like(one) for one in model.trainable_variables]
        reporter.step(loss=1.0, gradients=gradients, variables=model.trainable_variables, optimizer=optimizer)
        seen = weakref.ref(step)
        del step
    gc.collect()
    (_, environment) = sent.layouts[-1]
    assert environment is not None
    assert environment.operations == {}
    assert seen() is None


def test_a_loop_without_a_compiled_step_has_nothing_to_tell() -> None:
    model, _ = built()
    x, y = batch()
    with Reporter() as reporter:
        sent = recorded(reporter)
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(y * tf.math.log(tf.sigmoid(model(x))))
        gradients = tape.gradient(loss, model.trainable_variables)
        reporter.step(loss=loss, gradients=gradients, variables=model.trainable_variables)
    (_, environment) = sent.layouts[-1]
    assert environment is not None
    assert environment.operations == {}
