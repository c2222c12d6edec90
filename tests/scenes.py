"""Failing steps to hand to `examine`, and the line of a test that is expected to be named."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

from trainvitals.autopsy.examine import Scene, examine
from trainvitals.autopsy.report import Report
from trainvitals.probe.types import Value


def line_of(marker: str) -> int:
    """Return the number of the caller's line that ends with the comment `# marker`."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    lines = Path(frame.f_back.f_code.co_filename).read_text().splitlines()
    (found,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"# {marker}"))
    return found


def numbers(*shape: int, seed: int = 0) -> Value:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def spoilt(*shape: int, sample: int) -> Value:
    """Return an all positive batch but for one sample."""
    x = np.abs(numbers(*shape)) + 0.1
    x[sample] = -x[sample]
    return x


def dense(*layers: Value, features: int = 4) -> Value:
    """Return a Sequential model of these layers."""
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((features,)), *layers])


def compiled(model: Value, loss: Value = "mse", optimizer: Value = None) -> Value:
    """Return the model, ready to train and with every variable made."""
    model.compile(optimizer or keras.optimizers.SGD(0.01), loss)
    model.optimizer.build(model.trainable_variables)
    return model


def state_of(model: Value) -> list[tuple[Value, Value]]:
    """Return every variable with its value now."""
    held = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [(variable, variable.numpy()) for variable in {id(one): one for one in held}.values()]


def scene_of(model: Value, *data: Value) -> Scene:
    return Scene(
        step=7,
        model=model,
        run=model.train_step,
        data=data,
        state=state_of(model),
        weights_from="before_step",
        optimizers=(model.optimizer,),
    )


def report_of(model: Value, *data: Value) -> Report:
    """Return the autopsy of one step of a compiled model on this batch."""
    return examine(scene_of(model, *data))


def loop_report(
    run: Callable[[Value], Value], data: Value, variables: list[Value], optimizers: tuple[Value, ...] = ()
) -> Report:
    """Return the autopsy of one step of a loop of the user's own."""
    held = [*variables, *(one for optimizer in optimizers for one in optimizer.variables)]
    state = [(variable, variable.numpy()) for variable in held]
    return examine(Scene(7, None, run, data, state, "before_step", optimizers))
