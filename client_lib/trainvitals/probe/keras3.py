"""The way into Keras 3 on TensorFlow: one traced train function of ours beside the user's own.

`Probe.install` makes it, `Probe.remove` puts the user's back. The hooks on the model and its optimizers exist
only while `train_step` itself runs (while it is traced), so that saving, cloning and pickling see nothing.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainvitals.probe.activations import Activations, Outputs
from trainvitals.probe.brake import Brake
from trainvitals.probe.capture import Recorder
from trainvitals.probe.compiled import capture_of, fed
from trainvitals.probe.decode import BlockShape, Decoded, decode
from trainvitals.probe.dials import Dials
from trainvitals.probe.kinds import steps_per_execution_of
from trainvitals.probe.layers import Groups, group_variables
from trainvitals.probe.operations import OWN_SCOPE
from trainvitals.probe.optimizers import optimizers_of
from trainvitals.probe.parts import elements_of_all
from trainvitals.probe.replicas import Replicas, adds_up, plain_variables
from trainvitals.probe.ring import Ring, capacity_for
from trainvitals.probe.row import part_width
from trainvitals.probe.row_shape import RowShape
from trainvitals.probe.saving import Watch, watched_saves
from trainvitals.probe.step import StepTrace, Trace
from trainvitals.probe.taps import attribute
from trainvitals.probe.types import Model, Optimizer, Tensor, Value
from trainvitals.response import Policy

_log = logging.getLogger("trainvitals")

OWN_MARK = "_trainvitals_original"  # on our train function: the user's


class Probe:
    """What is measured of one model. Only the training thread may call it."""

    heeds = True  # the optimizer is given the gradients that `note_apply` returns
    can_watch_outputs = True

    def __init__(
        self, *, captures: bool = True, policy: Policy = "continue", activations_every: int = 0
    ) -> None:
        self._captures = captures
        self._activations_every = activations_every  # steps; 0: never
        self._activations: Activations | None = None
        self._policy = policy
        self.groups = Groups((), np.zeros(0, np.int64))
        self.operations: dict[str, list[str]] = {}
        self.notes: list[str] = []  # what the user should know about the measurement; the reporter takes them
        self.layout_changed = False
        self.optimizer: Optimizer = None
        self.capture: Recorder | None = None  # of failing steps
        self.brake: Brake | None = None  # keeps their updates out
        self._model: Value = None
        self._replicas: Replicas | None = None  # where several train together
        self._counter: Value = None
        self.dials: Dials | None = None  # of the traced step
        self._slots: dict[object, Any] = {}
        self._rings: dict[object, tuple[RowShape, Ring, list[BlockShape]]] = {}
        self._details: dict[object, Ring] = {}
        self._variables: list[Any] = []
        self._capacity = 0
        self._key: object = None
        self._own: Callable[..., Any] | None = None
        self._traced: Callable[..., Any] | None = None
        self._saving = ExitStack()
        self._is_broken = False
        self._told: set[str] = set()

    def install(
        self, model: Model, around: Callable[[Callable[..., Any]], Callable[..., Any]], watch_save: Watch
    ) -> None:
        """Put our train function into `model`; call `begin` before it runs. `around` wraps each call."""
        self._saving.close()
        users = getattr(model.train_function, OWN_MARK, model.train_function)
        key = self._key_of(model, users)
        if key != self._key or self._traced is None:
            self._forget(model)
            self._traced = self._trace(model)
            self._key = key
        own = around(self._traced)
        setattr(own, OWN_MARK, users)
        self._own = own
        model.train_function = own
        self._saving.enter_context(watched_saves(model, watch_save))

    def begin(self, step: int) -> None:
        """Let rows begin at `step`; what is in the rings is forgotten."""
        self._counter.assign(step)
        if self.capture is not None:
            self.capture.begin(step)
        if self.brake is not None:
            self.brake.begin()
        if self._replicas is not None:
            self._replicas.begin()
        if self._activations is not None:
            self._activations.begin()
        for ring in [*(ring for _, ring, _ in self._rings.values()), *self._details.values()]:
            ring.clear()

    def remove(self) -> None:
        """Put the user's own train function back, unless somebody else has replaced ours."""
        self._saving.close()
        if self._own is not None and self._model.train_function is self._own:
            self._model.train_function = getattr(self._own, OWN_MARK)
        self._own = None

    def read(self) -> list[Decoded]:
        """Return the series of all steps since the last read, in pieces of rising steps."""
        pieces, has_asked = [], self.dials is not None and self.dials.take_asked()
        for shape, ring, blocks in self._rings.values():
            rows = ring.read()
            if len(rows):
                pieces.append(decode(rows, blocks, shape.has_loss, self.groups, has_asked=has_asked))
        if self._activations is not None:
            pieces = self._activations.join(pieces)
        return sorted(pieces, key=lambda piece: int(piece.steps[0]))

    @property
    def capacity(self) -> int:
        """Return how many steps fit between two reads."""
        return self._capacity

    @property
    def variables(self) -> list[Any]:
        """Return the variables that `groups` is about, in its order; known once a step has been traced."""
        return self._variables

    def _key_of(self, model: Model, users: object) -> object:
        variables = tuple(id(variable) for variable in model.trainable_variables)
        return id(model), id(users), id(model.optimizer), variables, model.run_eagerly, model.jit_compile

    def _forget(self, model: Model) -> None:
        self._model = model
        self.optimizer = model.optimizer
        self._replicas = Replicas(model) if model.distribute_strategy.num_replicas_in_sync > 1 else None
        with self._variables_of_ours():
            self._counter = tf.Variable(tf.constant(0, tf.int64), trainable=False, name="trainvitals_step")
        may_thin = self._policy == "continue"
        self.dials = Dials.of(model, may_thin=may_thin) if self._replicas is None else None
        self._slots, self._rings, self._details, self._variables = {}, {}, {}, []
        widest = part_width(len(model.trainable_variables))
        self._capacity = capacity_for(steps_per_execution_of(model), widest)
        self._is_broken = False
        self.operations = {}
        self.capture = capture_of(model) if self._captures else None
        self._activations = self._new_activations(model) if self._activations_every else None
        self.brake = None if self._policy == "continue" else Brake(model, stops=self._policy == "stop")

    def _new_activations(self, model: Model) -> Activations | None:
        if self._replicas is not None or not self.can_watch_outputs:
            where = "tf_keras" if self._replicas is None else "several replicas"
            self._tell(f"Activations are not measured with {where}.")
            return None
        return Activations(model, self._activations_every, self._capacity, use_xla=bool(model.jit_compile))

    def _trace(self, model: Model) -> Callable[..., Any]:
        original = model.train_step

        def train_step(data: Value) -> Value:
            return self._train_step(original, data)

        kept = model.train_function
        with attribute(model, "train_step", train_step), fed(model, self.capture):
            model.make_train_function(force=True)
        traced: Callable[..., Any] = model.train_function
        model.train_function = kept
        return traced

    def _train_step(self, original: Callable[[Any], Any], data: Value) -> Value:
        if self._is_broken and self.brake is None:
            return original(data)
        if self._replicas is not None:
            return self._replica_step(original, data, self._replicas)
        trace = StepTrace(
            data,
            self._counter,
            self._slot,
            self._details_ring,
            self.capture,
            use_xla=bool(self._model.jit_compile),
            main_optimizer=self._model.optimizer,
            is_heeded=self.heeds,
            dials=self.dials,
        )
        with self._guard():
            trace.hold()
        held = None if self.brake is None else self.brake.note_start()
        outputs = None
        with self._hooks(trace), ExitStack() as watching:
            if self._activations is not None:
                outputs = watching.enter_context(self._activations.watching())
            result = original(data)
        returned = result
        if self.brake is not None and held is not None:
            returned = self.brake.finish(held, self._counter.read_value(), result)
        with self._guard():
            self._emit(trace, result, outputs)
        return returned

    def _replica_step(self, original: Callable[[Any], Any], data: Value, replicas: Replicas) -> Value:
        """Let a replica note its part; the last one writes the row of all."""
        is_known = False
        with self._guard():
            is_known = replicas.enter(data)
        if not is_known:
            self._tell("The replicas of this strategy cannot be told apart: nothing is measured.")
            return original(data)
        with replicas.hooked(self._hooks):
            result = original(data)
        with self._guard():
            joined = replicas.finish(result, self._counter)
            if joined is not None:
                shape, number, row, source = joined
                with tf.device(None):  # instead of that of the last replica
                    self._write(shape, number, row, source, replicas)
                if self._captures:
                    self._tell("Several replicas train together: a failing step is not run again.")
                if not adds_up(self.optimizer):
                    self._tell(
                        f"Keras {keras.__version__} adds up no gradients: each replica trains by itself."
                    )
        return result

    def _emit(self, trace: StepTrace, result: Value, outputs: Outputs | None) -> None:
        shape, row, source = trace.finish(result)
        has_new_layers = False
        if self._activations is not None and outputs is not None:
            has_new_layers = self._activations.write(outputs, trace.number, trace.known_loss())
        self._write(shape, trace.number, row, source, trace)
        if has_new_layers:
            self._regroup()

    def _write(
        self, shape: RowShape, number: Tensor, row: Tensor, source: str, trace: StepTrace | Replicas
    ) -> None:
        if trace.operations and not self.operations:
            self.operations = trace.operations
            self.layout_changed = True
        ring = self._ring(shape)
        with tf.name_scope(OWN_SCOPE):
            ring.write(number, row)
            with tf.control_dependencies([row]):  # where the data end there is no row, and so no step
                self._counter.assign_add(1)
        self._remark(shape, source, trace)

    def _remark(self, shape: RowShape, source: str, trace: StepTrace | Replicas) -> None:
        if not source:
            self._tell("No raw loss was found in this train_step: it is missing, not zero.")
        if not shape.blocks:
            self._tell("No optimizer's apply was called in this train_step: gradients are missing.")
        if any(block.scaling == "dynamic" for block in shape.blocks):
            scaled = trace.losses.keys() & {"scale_loss", "scale_loss of another optimizer"}
            self._remark_scaling(is_scaled=bool(scaled))

    def _remark_scaling(self, *, is_scaled: bool) -> None:
        if not is_scaled:
            self._tell("train_step never called optimizer.scale_loss, yet apply divides by the loss scale.")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.notes.append(text)

    def _ring(self, shape: RowShape) -> Ring:
        if shape.key not in self._rings:
            self._grow_layout(shape)
            known = {id(variable): place for place, variable in enumerate(self._variables)}
            blocks = [
                BlockShape(
                    np.array([known[id(variable)] for variable in block.variables], dtype=np.int64),
                    block.scaling,
                    block.is_main,
                    block.has_rate,
                    None if block.is_whole else [(part, ring.rows) for part, ring in block.details],
                    block.is_unscaled,
                    block.tells_skip,
                    block.is_thinned,
                    elements_of_all(block.variables),
                )
                for block in shape.blocks
            ]
            with self._variables_of_ours():
                self._rings[shape.key] = (shape, Ring(shape.width, self.capacity), blocks)
        return self._rings[shape.key][1]

    def _variables_of_ours(self) -> AbstractContextManager[None]:
        return nullcontext() if self._replicas is None else plain_variables()

    def _grow_layout(self, shape: RowShape) -> None:
        seen = {id(variable) for variable in self._variables}
        new = [v for block in shape.blocks for v in block.variables if id(v) not in seen]
        if new or not self._rings:
            self._variables += list({id(variable): variable for variable in new}.values())
            self._regroup()

    def _regroup(self) -> None:
        self.groups = group_variables(self._variables, self._model)
        if self._activations is not None:
            self.groups = self._activations.extend(self.groups, self._variables)
        self.layout_changed = True

    def _slot(self, key: object, width: int) -> Value:
        if (key, width) not in self._slots:
            with tf.init_scope():
                self._slots[key, width] = tf.Variable(
                    tf.fill([width], tf.constant(-1.0, tf.float64)), trainable=False, name="trainvitals_slot"
                )
        return self._slots[key, width]

    def _details_ring(self, key: object, width: int) -> Ring:
        if (key, width) not in self._details:
            self._details[key, width] = Ring(width, self.capacity)
        return self._details[key, width]

    @contextmanager
    def _hooks(self, trace: Trace) -> Iterator[None]:
        with ExitStack() as stack:
            with self._guard():
                for optimizer in optimizers_of(self._model):
                    self._hook_optimizer(stack, trace, optimizer)
                self._hook_losses(stack, trace)
            yield

    def _hook_optimizer(self, stack: ExitStack, trace: Trace, optimizer: Optimizer) -> None:
        apply, scale_loss = optimizer.apply, optimizer.scale_loss
        source = "scale_loss" if optimizer is self._model.optimizer else "scale_loss of another optimizer"

        def hooked_apply(
            grads: Value, trainable_variables: Value = None, *others: Value, **options: Value
        ) -> Value:
            if isinstance(grads, Mapping):  # an optimizer of the user's own: it alone knows what is what
                return apply(grads, trainable_variables, *others, **options)
            grads = list(grads)
            if trainable_variables is not None:
                trainable_variables = list(trainable_variables)
            with self._guard():
                variables = trainable_variables
                if variables is None:
                    variables = optimizer._trainable_variables
                grads = trace.note_apply(optimizer, grads, variables)
            given = (grads,) if trainable_variables is None else (grads, trainable_variables, *others)
            call = functools.partial(apply, *given, **options)
            if self.brake is None:
                return call()
            return self.brake.apply(call, optimizer, grads, trainable_variables, trace.known_loss())

        def hooked_scale_loss(loss: Tensor) -> Value:
            with self._guard():
                trace.note_loss(source, loss)
            return scale_loss(loss)

        stack.enter_context(attribute(optimizer, "apply", hooked_apply))
        stack.enter_context(attribute(optimizer, "scale_loss", hooked_scale_loss))

    def _hook_losses(self, stack: ExitStack, trace: Trace) -> None:
        compute_loss = self._model.compute_loss

        def hooked_compute_loss(*args: Value, **kwargs: Value) -> Value:
            loss = compute_loss(*args, **kwargs)
            with self._guard():
                trace.note_loss("compute_loss", loss)
            return loss

        stack.enter_context(attribute(self._model, "compute_loss", hooked_compute_loss))
        for metric in self._model.metrics:
            if metric.name == "loss" and isinstance(metric, keras.metrics.Mean):
                self._hook_metric(stack, trace, metric)

    def _hook_metric(self, stack: ExitStack, trace: Trace, metric: Value) -> None:
        update_state = metric.update_state

        def hooked_update_state(values: Value, *args: Value, **kwargs: Value) -> Value:
            with self._guard():
                trace.note_loss("loss metric", values)
            return update_state(values, *args, **kwargs)

        stack.enter_context(attribute(metric, "update_state", hooked_update_state))

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Keep our own failure out of the user's training: one log line, then off."""
        try:
            yield
        except Exception:
            self._is_broken = True
            if "broken" not in self._told:
                self._told.add("broken")
                _log.warning("trainvitals could not measure this step and stops measuring", exc_info=True)
