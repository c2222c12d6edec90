"""Random chains of operations: the line and the samples that are named, against values looked at by hand."""

from __future__ import annotations

import linecache
import random

import numpy as np
import pytest
import tensorflow as tf

from scenes import loop_report, numbers
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow

N_CHAINS = 40
FIRST_LINE = 6  # of the chain, in the source below
SOURCE = """
def run(batch):
    values = []
    with tf.GradientTape(persistent=True) as tape:
        t = batch[0] * v
        {chain}
        loss = tf.reduce_mean(t * k)
    seen.append((values, loss, tape))
    tape.gradient(loss, v)
    return loss
"""
HARMLESS = (
    "tf.tanh(t)",
    "t * 0.5",
    "tf.nn.relu(t) + 0.1",
    "tf.matmul(t, w)",
    "tf.transpose(tf.transpose(t))",
    "tf.reverse(t, [1])",
    "tf.reshape(tf.reshape(t, [-1]), [8, 4])",
    "tf.where(t > 0, t, 0.01 * t)",
    "tf.gather(t, [0, 1, 2, 3], axis=1)",
    "tf.einsum('bi,ij->bj', t, w)",
    "tf.cond(tf.reduce_sum(t) > 0, lambda: t, lambda: -t)",
    "tf.cast(tf.cast(t, tf.float64), tf.float32)",
)
FAILING = ("tf.math.log(t)", "tf.sqrt(t)", "1.0 / t", "tf.exp(t)", "tf.acosh(t)", "tf.math.rsqrt(t)")
FAILING_BACKWARD = (
    "tf.sqrt(tf.abs(t))",
    "tf.abs(t) ** 0.5",
    "tf.where(t > 0, tf.math.log(t), 0.0)",
    "tf.where(t > 0, 1.0 / t, 0.0)",
    "tf.maximum(tf.math.log(tf.nn.relu(t)), -3.0)",
)


class Chain:
    """A step of random operations, the names that it uses, and what it saw when it ran."""

    def __init__(self, seed: int, failing: tuple[str, ...]) -> None:
        draw = random.Random(seed)
        steps = [*draw.choices(HARMLESS, k=draw.randint(0, 3)), draw.choice(failing)]
        steps += draw.choices(HARMLESS, k=draw.randint(0, 3))
        text = SOURCE.format(chain="\n        ".join(f"t = {step}; values.append(t)" for step in steps))
        name = f"<chain {seed} of {failing[0]}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        self.seen: list[Value] = []
        self.weight = tf.Variable(tf.ones((1, 4)))
        self.names = {
            "tf": tf,
            "v": self.weight,
            "w": tf.eye(4),
            "k": numbers(1, 4, seed=seed),
            "seen": self.seen,
        }
        exec(compile(text, name, "exec"), self.names)
        self.data = np.abs(numbers(8, 4, seed=seed)) + np.float32(1.1)
        self.data[draw.randrange(8), draw.randrange(4)] = draw.choice([0, -5, 200])

    def run(self, data: Value) -> tuple[list[Value], Value, Value]:
        self.names["run"]((tf.constant(data),))
        values, loss, tape = self.seen[-1]
        return values, loss, tape


def bad_rows(value: Value) -> tuple[int, ...]:
    return tuple(int(row) for row in np.flatnonzero(~np.isfinite(value.numpy()).all(axis=1)))


@pytest.mark.parametrize("seed", range(N_CHAINS))
def test_the_first_line_whose_value_is_bad_is_named(seed: int) -> None:
    chain = Chain(seed, FAILING)
    values, loss, tape = chain.run(chain.data)
    report = loop_report(chain.names["run"], (chain.data,), [chain.weight])
    if np.isfinite(loss.numpy()):
        is_bad = not np.isfinite(tape.gradient(loss, chain.weight).numpy()).all()
        assert report.found == ("operation" if is_bad else "nothing")
        return
    first = next(place for place, value in enumerate(values) if bad_rows(value))
    assert (report.found, report.direction, report.line) == ("operation", "forward", FIRST_LINE + first)
    assert report.samples == bad_rows(values[-1])


@pytest.mark.parametrize("seed", range(N_CHAINS))
def test_the_line_whose_gradient_turns_bad_is_named(seed: int) -> None:
    chain = Chain(seed, FAILING_BACKWARD)
    values, loss, tape = chain.run(chain.data)
    report = loop_report(chain.names["run"], (chain.data,), [chain.weight])
    assert np.isfinite(loss.numpy())
    slopes = tape.gradient(loss, values)
    bad = [place for place, slope in enumerate(slopes) if bad_rows(slope)]
    is_first = not np.isfinite(tape.gradient(loss, chain.weight).numpy()).all() and not bad
    if not bad and not is_first:
        assert report.found == "nothing"
        return
    # The slope of one value is bad: it is the gradient of the next line that made it so.
    last = max(bad) + 1 if bad else 0
    assert (report.found, report.direction, report.line) == ("operation", "backward", FIRST_LINE + last)
    if bad:
        assert report.samples == bad_rows(slopes[max(bad)])
