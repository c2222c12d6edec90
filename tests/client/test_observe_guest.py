"""`Reporter.observe` as a guest: run eagerly, given too much or too little, and what it may not do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from observing import Loop, batches, compiled, scaled
from training import recorded
from trainvitals import Reporter
from trainvitals.probe import observed
from trainvitals.probe.observed import Observed
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow
STEPS = 7


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_run_eagerly_it_is_the_same_rows(is_late: bool) -> None:
    loop, eager = (
        Loop("mixed_float16", is_late=is_late, make_optimizer=lambda: scaled(3, 2.0**17)) for _ in range(2)
    )
    eager.function = eager.step
    data = batches(STEPS)
    sent, again = loop.run(data), eager.run(data)
    assert sent.steps == again.steps == list(range(STEPS))
    for name in ("loss", "grad_norm", "loss_scale", "optimizer_step", "skipped"):
        np.testing.assert_allclose(again.values(name), sent.values(name), rtol=2e-2, err_msg=name)


def test_eager_and_compiled_steps_come_one_after_the_other() -> None:
    variable, reporter = tf.Variable(0.0), Reporter()
    sent = recorded(reporter)

    def step() -> None:
        reporter.observe(loss=variable)
        variable.assign_add(1.0)

    in_graph = tf.function(step)
    with reporter:
        for function in (in_graph, step, step, in_graph, in_graph, step):
            function()
            reporter.step()
        for _ in range(2):
            reporter.step(loss=variable)
            variable.assign_add(1.0)
        in_graph()
        reporter.step()
    assert sent.steps == list(range(9))
    assert sent.values("loss") == [float(step) for step in range(9)]


def test_a_loss_that_step_is_given_as_well_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    with loop.reporter:
        for x, y in batches(4):
            loss = loop.function(tf.constant(x), tf.constant(y))
            loop.reporter.step(loss=loss, metrics={"more": 1.0})
    assert loop.sent.steps == [0, 1, 2, 3]
    assert set(loop.sent.values("more")) == {1.0}
    assert len(caplog.records) == 1
    assert "`observe` has reported" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"gradients": [1.0], "variables": []},
        {"gradients": 5, "variables": "a text"},
        {"gradients": [object()], "variables": [object()]},
        {"loss": "a text"},
        {"metrics": "a text"},
        {"loss": 1.0, "optimizer": "a text"},
    ],
    ids=["a number", "no list", "no tensors", "text as loss", "text as metrics", "text as optimizer"],
)
def test_wrong_arguments_are_one_line_and_the_function_runs_on(
    wrong: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    reporter = Reporter()
    recorded(reporter)

    @compiled
    def step(x: Value) -> Value:
        reporter.observe(**wrong)
        reporter.observe(**wrong)
        return x + 1.0

    with reporter:
        for _ in range(3):
            assert float(step(tf.constant(1.0))) == 2.0
            reporter.step()
    assert len([one for one in caplog.records if one.name == "trainvitals"]) <= 1


def test_a_step_asks_the_device_for_nothing_but_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    (x, y), reads = batches(1)[0], []
    read = Observed.read

    def counted(self: Observed) -> Any:  # noqa: ANN401
        reads.append(1)
        return read(self)

    monkeypatch.setattr(Observed, "read", counted)
    monkeypatch.setattr("trainvitals.loop_rows.READ_EVERY_S", 1e6)
    with loop.reporter:
        for _ in range(300):
            loop.function(tf.constant(x), tf.constant(y))
            with monkeypatch.context() as patch:
                if len(reads) == 1:  # after the first step
                    patch.setattr(type(tf.constant(0)), "numpy", None)
                loop.reporter.step()
    assert len(reads) == 2  # in the first step, and at the end
    assert loop.sent.steps == list(range(300))


def test_a_run_that_is_resumed_goes_on_after_the_updates_that_were_made() -> None:
    loop = Loop(options={"run_id": "resumed-loop"})
    loop.optimizer.build(loop.model.trainable_variables)
    loop.optimizer.iterations.assign(40)
    loop.run(batches(3))
    assert loop.sent.steps == [40, 41, 42]
    assert loop.sent.values("optimizer_step") == [41, 42, 43]


def test_a_reporter_does_not_hold_on_to_ever_more_models(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observed, "MAX_TABLES", 8)
    reporter = Reporter()
    sent = recorded(reporter)
    functions = []
    with reporter:
        for _ in range(observed.MAX_TABLES + 3):
            variable = tf.Variable(0.0)
            functions.append(
                tf.function(lambda one=variable: reporter.observe(gradients=[one], variables=[one]))
            )
            functions[-1]()
            reporter.step()
    assert 0 < len(sent.steps) <= observed.MAX_TABLES
    assert len([one for one in caplog.records if one.name == "trainvitals"]) == 1


def test_a_strategy_of_one_replica_is_as_good_as_none(caplog: pytest.LogCaptureFixture) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    variable, reporter = tf.Variable(1.0), Reporter()
    sent = recorded(reporter)

    @compiled
    def step() -> Value:
        return strategy.run(lambda: reporter.observe(loss=variable))

    with reporter:
        step()
        reporter.step()
    assert sent.steps == [0]
    assert caplog.records == []
