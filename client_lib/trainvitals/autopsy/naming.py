"""From a replay to a report: the operation and its place, the part of the batch, or the bad weight."""

from __future__ import annotations

from msgspec.structs import replace

from trainvitals.autopsy.batch import Batch, Part, blame
from trainvitals.autopsy.labels import (
    Domain,
    domain_of_error,
    domain_of_loss,
    integers_outside,
    labels_outside,
)
from trainvitals.autopsy.layer_path import LayerPaths
from trainvitals.autopsy.numbers import NAN, bad_elements, operand
from trainvitals.autopsy.origin import (
    Origin,
    find_origin,
    forward_of,
    is_unselected,
    layers_of,
    leads_to,
    line_of,
    outcome_of,
    roots_of,
)
from trainvitals.autopsy.record import Operation, Recording
from trainvitals.autopsy.replay import Attempt, Replayer
from trainvitals.autopsy.report import MAX_SAMPLES, Report
from trainvitals.autopsy.rows import Spoilt, likely_samples
from trainvitals.autopsy.scene import Scene
from trainvitals.autopsy.seen import difference
from trainvitals.autopsy.source import Line, line_of_error
from trainvitals.probe.types import Value

_UNTOLD = "it went non-finite again, and which operation began it cannot be told"
_UNKEPT = (
    "the replay met NaN in a variable (or constant) that was not kept from before the step: "
    "it was so already, or this step made it so"
)
_OF_LABELS = frozenset({"SparseSoftmaxCrossEntropyWithLogits"})  # its inputs: logits and class ids


_NEVER_WELL = -1  # no update was seen before: they came so


class Namer:
    """Says in a report's words what a replay of one scene found."""

    def __init__(self, scene: Scene, replayer: Replayer, batch: Batch) -> None:
        self._scene = scene
        self._replayer = replayer
        self._batch = batch
        self._blank = Report(
            step=scene.step,
            found="nothing",
            is_reproduced=False,
            batch_size=batch.size,
            weights_from=scene.weights_from,
        )

    def report(self, attempt: Attempt) -> tuple[Report, list[tuple[int, ...]]]:
        """Return what was found; with it, of an operation, which samples it may be, the likeliest first."""
        recording = attempt.recording
        if recording is not None and attempt.stage:
            starts = self._starts(recording, attempt)
            parts = [part.identity for part in self._batch.parts]
            known = [*self._replayer.of_handle, *parts, *_unkept(recording)]
            origin = find_origin(recording, starts, known)
            if origin is not None:
                outcome = outcome_of(recording, starts, origin.operation)
                spoilt = [Spoilt(one.number, one.causes, one.rows) for one in outcome]
                likely = likely_samples(spoilt, starts, self._batch.size)
                return self._of_origin(recording, attempt, origin), likely
        return self._without_origin(attempt), []

    def without_weights(self) -> Report:
        """Return what the batch alone tells: weights from after the step say nothing of what spoilt them."""
        note = "the weights from before the step were not kept, and those from after it are not finite"
        blank = replace(self._blank, notes=(note,))
        part = self._batch.bad_part()
        return blank if part is None else self._of_part(blank, part, bad_elements(part.array()))

    def _starts(self, recording: Recording, attempt: Attempt) -> list[int]:
        if attempt.stage == "weight":
            writers = (recording.bad_variables.get(handle, -1) for handle in attempt.bad)
            return [writer for writer in writers if writer >= 0]
        makers = (recording.maker.get(identity, -1) for identity in attempt.bad)
        return [maker for maker in makers if maker >= 0]

    def _of_origin(self, recording: Recording, attempt: Attempt, origin: Origin) -> Report:
        paths = self._paths(recording)
        blank = replace(self._blank, is_reproduced=True, notes=_notes(recording))
        operation = origin.operation
        layer = self._layer(recording, attempt, operation, paths)
        if origin.leaf is not None:
            if (part := self._batch.part(origin.leaf)) is not None:
                return self._of_part(replace(blank, layer=layer), part, bad_elements(part.array()))
            if (variable := self._replayer.of_handle.get(origin.leaf)) is not None:
                return self._of_weight(blank, variable, paths)
        if (
            operation.leaves
            and (report := self._unknown_leaf(replace(blank, layer=layer), paths)) is not None
        ):
            return report
        if origin.leaf is not None:
            return self._of_unkept(blank, recording, operation)
        if (outside := self._labels_outside(operation, layer)) is not None:
            part, domain = outside
            return self._of_part(
                _at(blank, line_of(recording, operation)), part, domain.outside(part.array())
            )
        return self._of_operation(replace(blank, layer=layer), recording, attempt, operation)

    def _of_operation(
        self, blank: Report, recording: Recording, attempt: Attempt, operation: Operation
    ) -> Report:
        forward = forward_of(recording, operation)
        evidence = operation.evidence
        place = operation.place
        is_update = attempt.stage == "weight" and place.direction == "forward" and not place.layers
        report = replace(
            _at(blank, line_of(recording, operation)),
            found="operation",
            operation=operation.kind,
            gradient_of="" if forward is None else forward.kind,
            is_unselected=attempt.stage == "gradient" and is_unselected(recording, operation),
            computed_from=self._computed_from(recording, forward or operation),
            direction="update" if is_update else place.direction,
        )
        if evidence is None:
            return report
        return replace(report, inputs=evidence.inputs, output=evidence.output, n_bad=evidence.n_bad)

    def _of_unkept(self, blank: Report, recording: Recording, operation: Operation) -> Report:
        """Where nobody named a variable, this very step may have spoilt it."""
        line = _at(blank, line_of(recording, operation))
        return replace(line, is_reproduced=False, met="variable", notes=(*blank.notes, _UNKEPT))

    def _of_part(self, blank: Report, part: Part, bad: Value) -> Report:
        blamed = blame(bad, self._batch.size)
        return replace(
            blank,
            found=part.role,
            inputs=(operand(part.name, part.value),),
            n_bad=blamed.n_bad,
            feature=blamed.feature,
            samples=blamed.samples[:MAX_SAMPLES],
            n_bad_samples=len(blamed.samples),
        )

    def _of_weight(self, blank: Report, variable: Value, paths: LayerPaths) -> Report:
        value = self._replayer.value_before(variable)
        return replace(
            blank,
            found="weight",
            layer=paths.path(variable),
            inputs=(operand(paths.path(variable), value),),
            n_bad=int(bad_elements(value).sum()),
            weights_bad_since=_NEVER_WELL if self._scene.last_well is None else self._scene.last_well,
        )

    def _unknown_leaf(self, blank: Report, paths: LayerPaths) -> Report | None:
        """A part of the batch or a weight may have come in by a way that was not seen."""
        if (part := self._batch.bad_part()) is not None:
            return self._of_part(blank, part, bad_elements(part.array()))
        bad = self._replayer.bad_before()
        return self._of_weight(blank, bad[0], paths) if bad else None

    def _computed_from(self, recording: Recording, operation: Operation) -> tuple[str, ...]:
        roots = roots_of(recording, operation)
        parts = {part.identity: part.name for part in self._batch.parts if part.identity in roots}
        if roots & (recording.unclear - parts.keys()) or not roots.isdisjoint(self._replayer.of_handle):
            return ()
        return tuple(parts.values())

    def _without_origin(self, attempt: Attempt) -> Report:
        """Nothing was recorded, or the step raised, or it stayed finite: look at what went in."""
        paths = self._paths(attempt.recording)
        notes = () if attempt.error is None else (_error_note(attempt.error),)
        blank = replace(self._blank, is_reproduced=bool(attempt.stage), notes=notes)
        if not attempt.stage and attempt.error is None:
            return replace(blank, notes=self._finite_notes(attempt))
        if (part := self._batch.bad_part()) is not None:
            return self._of_part(blank, part, bad_elements(part.array()))
        domain = domain_of_error(attempt.error)
        if domain is not None and (outside := integers_outside(self._batch.parts, domain)) is not None:
            line = line_of_error(attempt.error)
            return self._of_part(_at(blank, line), outside, domain.outside(outside.array()))
        if bad := self._replayer.bad_before():
            return self._of_weight(blank, bad[0], paths)
        if attempt.recording is not None:
            return (
                replace(blank, notes=(*notes, *_notes(attempt.recording), _UNTOLD))
                if attempt.stage
                else blank
            )
        return self._by_layer(blank, attempt, paths) if attempt.stage else blank

    def _finite_notes(self, attempt: Attempt) -> tuple[str, ...]:
        notes = [] if attempt.scale != 1.0 else ["replayed eagerly, without XLA, the step stayed finite"]
        if self._scene.seen.loss or self._scene.seen.gradients:
            notes += difference(self._scene.seen, "", self._scene.weights_from)
        if (part := self._batch.bad_part()) is not None:
            notes.append(f"{part.name} is not finite everywhere, which does no harm in this step")
        return tuple(notes)

    def _by_layer(self, blank: Report, attempt: Attempt, paths: LayerPaths) -> Report:
        """Only the layer can be told: there was no seeing the operations."""
        notes = (*blank.notes, "this TensorFlow does not show its operations: only the layer can be named")
        blank = replace(blank, found="operation", notes=notes)
        if attempt.stage == "loss":
            return replace(blank, direction="forward", layer=paths.of_chain(attempt.layer or ()))
        if attempt.stage == "weight":
            return replace(
                blank, direction="update", layer=paths.of_variable(self._replayer.of_handle[attempt.bad[0]])
            )
        return replace(blank, direction="backward")

    def _labels_outside(self, operation: Operation, layer: str) -> tuple[Part, Domain] | None:
        """Return labels that the loss does not take, where the operation is in the loss."""
        parts = self._batch.parts
        if operation.kind in _OF_LABELS and operation.evidence is not None:
            domain = Domain(0, operation.evidence.inputs[0].shape[-1] - 1)
            part = integers_outside(parts, domain)
            return None if part is None else (part, domain)
        of_loss = None if layer else domain_of_loss(self._scene.model)
        part = None if of_loss is None else labels_outside(parts, of_loss)
        return None if part is None or of_loss is None else (part, of_loss)

    def _layer(self, recording: Recording, attempt: Attempt, operation: Operation, paths: LayerPaths) -> str:
        if layers := layers_of(recording, operation):
            return paths.of_chain(layers)
        if attempt.stage != "weight" or operation.place.direction == "backward":
            return ""
        for handle in attempt.bad:
            writer = recording.bad_variables.get(handle, -1)
            if writer >= 0 and leads_to(recording, writer, operation):
                return paths.of_variable(self._replayer.of_handle[handle])
        return ""

    def _paths(self, recording: Recording | None) -> LayerPaths:
        operations = () if recording is None else recording.operations
        chains = {operation.place.layers for operation in operations}
        return LayerPaths(self._scene.model, self._scene.weights, chains)


def _at(report: Report, line: Line | None) -> Report:
    if line is None:
        return report
    return replace(report, file=line.file, line=line.line, function=line.function, code=line.code)


def _unkept(recording: Recording) -> list[int]:
    """Return what is an origin if nothing else is; an Infinity there may be a mask of the user's."""
    return [handle for handle, badness in recording.unkept.items() if badness == NAN]


def _notes(recording: Recording) -> tuple[str, ...]:
    notes = []
    if recording.is_cut:
        notes.append(f"only the first {len(recording.operations)} operations of the step were looked at")
    if recording.failure is not None:
        notes.append(f"not every operation could be looked at: {type(recording.failure).__name__}")
    return tuple(notes)


def _error_note(error: Exception) -> str:
    # The message may hold values of the batch, which stay here.
    return f"the step raised {type(error).__name__}"
