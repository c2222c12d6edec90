"""Preflight: everything that is looked at before the first step, in order; what it touches is put back."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence

import keras

from trainvitals.autopsy.internals import can_see_operations
from trainvitals.autopsy.layer_path import LayerPaths
from trainvitals.autopsy.replay import eagerly
from trainvitals.autopsy.state import TakesDataOfItsOwn, kept, random_states
from trainvitals.preflight import data, failure, gradients, outputs, precision, scales
from trainvitals.preflight.finding import Finding
from trainvitals.preflight.given import MAX_SAMPLES, Given, given
from trainvitals.preflight.hazards import hazards
from trainvitals.preflight.operations import risky
from trainvitals.preflight.report import PreflightReport
from trainvitals.preflight.step import Outcome, called, has_own_step, run
from trainvitals.preflight.trace import Trace
from trainvitals.preflight.undo import unchanged
from trainvitals.probe.types import Model, Value

_OF_SCALE = {"gradient_exploding", "gradient_vanishing", "gradient_zero"}
_log = logging.getLogger("trainvitals")


def checked(model: Model, batch: Value) -> PreflightReport:
    """Look at a model and one batch, and report what will go wrong.

    Raises:
        TypeError: if `model` is no Keras model, or `batch` is no batch of arrays.
        ValueError: if the batch is empty, or has more parts than x, y and sample weights.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"preflight takes a keras.Model and a batch, and got a {type(model).__name__} first")
    check = _Check(model, given(batch))
    check.look("the data", check.data)
    check.look("the model", check.step)
    return check.report()


class _Check:
    """Collects findings and notes; each part that fails costs one note."""

    def __init__(self, model: Model, batch: Given) -> None:
        self._model = model
        self._given = batch
        self._findings: list[Finding] = []
        self._notes: list[str] = []
        if batch.is_cut:
            self._notes.append(f"the step was run with the first {MAX_SAMPLES} samples of the batch only")

    def look(self, what: str, part: Callable[[], None]) -> None:
        """Run one part of the preflight."""
        try:
            part()
        except Exception as error:  # the user's code runs here, and may do anything
            _log.debug("preflight could not look at %s", what, exc_info=error)
            self._notes.append(f"{what} could not be looked at: {type(error).__name__}")

    def data(self) -> None:
        """Look at the numbers of the batch alone."""
        self._findings += data.not_finite(self._given)
        if getattr(self._model, "loss", None) is not None and not has_own_step(self._model):
            self._findings += data.other_counts(self._given)
        self._findings += data.beyond_float16(self._given, self._model)

    def step(self) -> None:
        """Run the step once and look at all of it; nothing of that lasts."""
        model = self._model
        optimizers = precision.optimizers(model)
        held = [one for optimizer in optimizers for one in optimizer.variables]
        known = _variables(model)
        with random_states(), unchanged(model, *optimizers), kept([*known, *held]) as keeper:
            outcome = self._run()
            if len(_variables(model)) > len(known):  # made on the way: only now they can be told from numbers
                keeper.restore()
                outcome = self._run()
            if not can_see_operations():
                self._notes.append("this TensorFlow does not show its operations: they were not looked at")
            self._judge(outcome)
            if outcome.error is None and outcome.is_finite and not outcome.is_custom:
                self.look("inference", self._inference)

    def _run(self) -> Outcome:
        return run(self._model, self._given, Trace(self._given.run.parts, _variables(self._model)))

    def _judge(self, outcome: Outcome) -> None:
        self._note(outcome)
        chains = {step.place.layers for step in outcome.trace.steps}
        paths = LayerPaths(self._model, list(self._model.trainable_variables), chains)
        self.look("the optimizer", lambda: self._precision(outcome))
        self.look(
            "the labels",
            lambda: self._add(data.wrong_labels(self._given, outcome.calls, outcome.trace.nodes)),
        )
        self.look("the outputs", lambda: self._outputs(outcome, paths))
        self.look("the inputs", lambda: self._add(scales.not_normalised(self._given, outcome.trace, paths)))
        self.look(
            "the operations",
            lambda: self._add(risky(hazards(outcome.trace.nodes, outcome.trace.steps), paths)),
        )
        self.look("the first loss and gradients", lambda: self._result(outcome))

    def _note(self, outcome: Outcome) -> None:
        trace = outcome.trace
        if self._model.weights and not self._model.trainable_weights:
            self._notes.append("no weight of the model is trainable: a training would change nothing")
        if outcome.has_no_loss:
            self._notes.append(
                "without a compiled loss, labels, gradients and what feeds the loss were not looked at"
            )
        if trace.is_cut:
            self._notes.append("only the first operations of a very long step were looked at")
        if trace.failure is not None:
            self._notes.append(f"not every operation could be looked at: {type(trace.failure).__name__}")

    def _precision(self, outcome: Outcome) -> None:
        self._add(precision.of_optimizers(self._model))
        if outcome.has_unscaled:
            self._add([precision.not_applied()])

    def _outputs(self, outcome: Outcome, paths: LayerPaths) -> None:
        self._add(outputs.wrong_outputs(outcome.trace, outcome.calls, paths))
        known = {one.code for one in self._findings}
        if "single_unit_softmax" not in known:
            self._add(outputs.single_units(outcome.trace, outcome.calls, paths))

    def _result(self, outcome: Outcome) -> None:
        codes = {one.code for one in self._findings}
        if outcome.error is not None:
            self._raised(outcome.error, codes)
        elif not outcome.is_finite and not codes & {"data_not_finite", "input_beyond_float16"}:
            self._add([failure.not_finite(self._model, self._given, outcome)])
        elif outcome.is_finite and outcome.gradients is not None:
            self._bear()
            found = gradients.suspicious(outcome.gradients, self._model)
            if (
                "input_not_normalised" in codes
            ):  # that is why a gradient is huge, or nothing: one thing at a time
                found = [one for one in found if one.code not in _OF_SCALE]
            self._add(found)

    def _raised(self, error: Exception, codes: set[str]) -> None:
        if isinstance(error, TakesDataOfItsOwn):
            self._notes.append("train_step reads data of its own and was not run")
        elif not any(code.startswith("labels_") for code in codes):  # that is why
            needs_labels = getattr(self._model, "loss", None) is not None and not has_own_step(self._model)
            is_unlabelled = needs_labels and self._given.y is None
            self._add([failure.without_labels() if is_unlabelled else failure.raised(error)])

    def _bear(self) -> None:
        """NaN in the batch that leaves loss and gradients finite is left out on purpose: a note will do."""
        borne = [one for one in self._findings if one.code == "data_not_finite"]
        self._findings = [one for one in self._findings if one.code != "data_not_finite"]
        self._notes += [
            f"{one.part} is not finite everywhere, which does no harm in this step" for one in borne
        ]

    def _inference(self) -> None:
        """Look at the outputs outside of training, with the statistics that the one step has left."""
        if any(isinstance(one, keras.layers.BatchNormalization) for one in self._model._flatten_layers()):
            return  # its averages need many steps: until then its outputs are anything
        with eagerly(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if failure.bad_outputs(called(self._model, self._given.x, is_training=False)):
                self._add([failure.not_finite_in_inference()])

    def _add(self, findings: Sequence[Finding]) -> None:
        self._findings += [one for one in findings if one not in self._findings]

    def report(self) -> PreflightReport:
        """Return what was found, errors first."""
        ordered = sorted(self._findings, key=lambda one: one.severity != "error")
        return PreflightReport(tuple(ordered), tuple(dict.fromkeys(self._notes)))


def _variables(model: Model) -> list[Value]:
    known = [*model.variables, *getattr(model, "metrics_variables", ())]
    return list({id(one): one for one in known}.values())
