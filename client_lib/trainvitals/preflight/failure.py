"""A first step that fails: it raises, or what comes out is not finite. The autopsy names why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack

import tensorflow as tf

from trainvitals.autopsy.examine import Scene, examine
from trainvitals.autopsy.finite import badness_of
from trainvitals.autopsy.line import line_of
from trainvitals.autopsy.numbers import FINITE
from trainvitals.autopsy.report import Report
from trainvitals.autopsy.source import line_of_error
from trainvitals.preflight.finding import Finding
from trainvitals.preflight.given import Given
from trainvitals.preflight.precision import optimizers
from trainvitals.preflight.step import Outcome, custom_step, loss_function, updates_held_back
from trainvitals.probe.types import Model, Value

_MAX_MESSAGE = 300
_AROUND = re.compile(r"\x1b\[[0-9;]*m|\{\{.*?\}\} ?| ?\[Op:\w+\].*$")
_OF_BATCH = {"input", "label", "sample_weight"}


def not_finite(model: Model, given: Given, outcome: Outcome) -> Finding:
    """Return what made the loss or a gradient not finite, replayed."""
    report = _examined(model, given, outcome)
    is_loss = outcome.loss is not None and badness_of(outcome.loss) != FINITE
    told = line_of(report).partition(": ")[2] if report.is_reproduced else "the step did not do it again"
    advice = (
        "Repair the batch: the step is sound otherwise, as far as it was looked at."
        if report.found in _OF_BATCH
        else "Guard this operation, or change what reaches it; training would end in its first step."
    )
    return Finding(
        code="loss_not_finite" if is_loss else "gradient_not_finite",
        severity="error",
        what=f"the first {'loss is' if is_loss else 'gradients are'} not finite: {told}.",
        advice=advice,
        layer=report.layer,
        file=report.file,
        line=report.line,
        source=report.code,
        samples=report.samples,
    )


def _examined(model: Model, given: Given, outcome: Outcome) -> Report:
    held = [*model.variables, *getattr(model, "metrics_variables", ())]
    state = [(one, one.numpy()) for one in {id(one): one for one in held}.values()]
    scene = Scene(
        step=0,
        model=model,
        run=custom_step(model) if outcome.is_custom else loss_function(model),
        data=given.run.data,
        state=state,
        weights_from="before_step",
        optimizers=tuple(optimizers(model)),
    )
    with ExitStack() as stack:
        stack.enter_context(updates_held_back([]))
        return examine(scene)


def raised(error: Exception) -> Finding:
    """Return the finding of a step that raises."""
    line = line_of_error(error)
    message = _first_line(error)
    return Finding(
        code="step_raises",
        severity="error",
        what=f"the step raises {type(error).__name__}: {message}"
        if message
        else f"the step raises {type(error).__name__}.",
        advice="Run model.train_step on this batch to see the whole message: fit raises it, too.",
        file="" if line is None else line.file,
        line=0 if line is None else line.line,
        source="" if line is None else line.code,
    )


def without_labels() -> Finding:
    """Return the finding of a batch that has no labels for a loss that compares with some."""
    return Finding(
        code="step_raises",
        severity="error",
        what="the loss compares outputs with labels, and the batch has none.",
        advice="Give preflight what fit gets: (x, y).",
    )


def _first_line(error: Exception) -> str:
    """Return what an exception says, without where Keras and TensorFlow were when it was raised."""
    lines = [_AROUND.sub("", line).strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith("Exception encountered when calling")]
    return told[0][:_MAX_MESSAGE] if told else ""


def bad_outputs(outputs: Value) -> bool:
    """Tell whether some of the outputs are not finite."""
    flat: Sequence[Value] = tf.nest.flatten(outputs)
    return any(badness_of(one) != FINITE for one in flat if isinstance(one, tf.Tensor))


def not_finite_in_inference() -> Finding:
    """Return the finding of a model that is only finite in training."""
    return Finding(
        code="inference_not_finite",
        severity="warning",
        what="outside of training (training=False) the outputs are not finite: validation will be NaN.",
        advice="Look at what layers do there only, such as averages that begin at 0: guard their division.",
    )
