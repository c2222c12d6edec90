"""Replicas: one row of a step that several replicas of this process take together (`MirroredStrategy`).

Each replica notes its own part of the batch, of the loss and of the gradients. They are traced one after the
other into one graph, so the last that gets somewhere finds the parts of all others there and adds them up.
There is no collective of ours in the graph and no meeting of the replicas: a worker that has no reporter
leaves none waiting, and a failure of ours keeps no replica from meeting the others.

Of several processes (`MultiWorkerMirroredStrategy`) each tells what its own replicas did, as if they had
trained alone: added up over all of them, every rank would go bad in the same step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import tensorflow as tf

from trainvitals.probe import measure
from trainvitals.probe.capture import inside
from trainvitals.probe.kinds import family_of, inner_of
from trainvitals.probe.operations import OWN_SCOPE, risky_operations
from trainvitals.probe.optimizers import learning_rate_of, loss_scale_of, optimizer_step_of, scaling_of
from trainvitals.probe.row import EXTRAS, NOT_MEASURED
from trainvitals.probe.row_shape import Block, RowShape
from trainvitals.probe.step import LOSS_SOURCES, batch_parts, batch_size
from trainvitals.probe.types import Model, Optimizer, Tensor, Value

# Keras divides a loss by the number of replicas, but not what it shows as a metric: that is a mean.
MEANS = ("loss metric", "returned")
_DISTRIBUTING = "keras.src.backend.tensorflow.optimizer"  # where Keras 3 shares gradients among replicas


@dataclass(slots=True)
class Part:
    """What one replica noted."""

    data: Any
    losses: dict[str, Tensor] = field(default_factory=dict)
    gradients: list[list[Any]] = field(default_factory=list)  # of each `apply`
    is_over: bool = False  # its step


@dataclass(frozen=True, slots=True)
class _Applied:
    """One `apply` of all replicas: its scalars and numbers, as in `row.py`."""

    block: Block
    optimizer: Any
    scale: Tensor
    rate: Tensor
    numbers: Tensor


class Joint:
    """One step of all replicas of this process, while it is traced or run."""

    def __init__(self, count: int, workers: int, main_optimizer: Optimizer) -> None:
        self._count, self._workers, self._main = count, workers, main_optimizer
        self.parts: dict[int, Part] = {}
        self.operations: dict[str, list[str]] | None = None
        self.graph = _graph()
        self._applied: list[_Applied] = []

    def is_last(self, has: Callable[[Part], bool]) -> bool:
        """Return whether all replicas have what the calling one has, which is then the last."""
        return sum(has(part) for part in self.parts.values()) == self._count

    def measure(self, optimizer: Optimizer, index: int, variables: Sequence[Any]) -> None:
        """Measure the sum of what the replicas give to the `apply` number `index`."""
        rate = learning_rate_of(optimizer)
        is_dynamic = scaling_of(optimizer) == "dynamic"
        is_old = family_of(optimizer) == "tf_keras"
        block = Block(
            variables=tuple(variables),
            scaling=scaling_of(optimizer),
            is_main=optimizer is self._main,
            has_rate=rate is not None,
            is_whole=True,
            is_unscaled=is_old,
            tells_skip=is_dynamic and not is_old,
        )
        numbers = self._numbers(index, block)
        scale = _f64(loss_scale_of(optimizer))
        self._applied.append(_Applied(block, optimizer, scale, _f64(0.0 if rate is None else rate), numbers))

    def _numbers(self, index: int, block: Block) -> Tensor:
        parts = self._in_order()
        gradients = [
            measure.dense(_sum(shares), use_xla=False)
            for shares in zip(*(part.gradients[index] for part in parts), strict=True)
        ]
        halves = measure.half_sums(gradients)
        loss = self._loss("scale_loss")
        count = len(gradients)

        def as_usual() -> Tensor:
            extras = tf.constant([NOT_MEASURED] * len(EXTRAS), tf.float64)
            skip = [tf.zeros([1], tf.float64)] * block.tells_skip
            return tf.concat([extras, self._whole(halves), tf.zeros([count], tf.float64), *skip], 0)

        def suspicious() -> Tensor:
            batches = [batch_parts(part.data) for part in parts]
            inputs = [tensor for one, _ in batches for tensor in one]
            labels = [tensor for _, one in batches for tensor in one]
            weights = [inside(variable) for variable in block.variables]
            numbers = measure.details(gradients, halves, loss, (inputs, labels, weights))
            extras, exact, bad, _ = tf.split(numbers, [len(EXTRAS), count, count, 2 * count])
            # Keras 3 asks the first replica alone whether an update is to be skipped.
            skip = [measure.has_nonfinite(parts[0].gradients[index])] * block.tells_skip
            return tf.concat([extras, self._whole(exact), bad, *skip], 0)

        return tf.cond(measure.is_usual(halves, loss), as_usual, suspicious)

    def _whole(self, halves: Tensor) -> Tensor:
        """Return half sums as they were if the replicas of this process trained alone."""
        return _f64(halves) * float(self._workers**2)

    def row(self, number: Tensor) -> tuple[RowShape, Tensor, str]:
        """Return the shape of the row of step `number`, the row, and where its loss comes from, or ""."""
        source = next((name for name in LOSS_SOURCES if self._has_all(name)), "")
        loss = self._loss(source) if source else None
        step = _f64(number)
        size = tf.add_n([batch_size(part.data) for part in self._in_order()])
        pieces = [tf.stack([step, step, _f64(0.0) if loss is None else loss, size])]
        for one in self._applied:
            updates = _f64(optimizer_step_of(one.optimizer))
            pieces += [tf.stack([step, one.scale, one.rate, updates]), one.numbers]
        return RowShape(tuple(one.block for one in self._applied), bool(source)), tf.concat(pieces, 0), source

    def _has_all(self, source: str) -> bool:
        return self.is_last(lambda part: source in part.losses)

    def _loss(self, source: str) -> Tensor | None:
        """Return the loss of the whole batch, in which each replica's mean counts as much as another's."""
        if not self._has_all(source):
            return None
        parts = self._in_order()
        if source not in MEANS or _is_optimised(parts[0], source):
            return tf.add_n([measure.as_scalar(part.losses[source]) for part in parts]) * self._workers
        means = [tf.reduce_mean(_f64(tf.convert_to_tensor(part.losses[source]))) for part in parts]
        return tf.add_n(means) / len(means)

    def _in_order(self) -> list[Part]:
        return [self.parts[replica] for replica in sorted(self.parts)]


class Replicas:
    """The replicas of one model in this process: takes the notes of all of them, see `step.Trace`."""

    def __init__(self, model: Model) -> None:
        strategy = model.distribute_strategy
        self._optimizer = model.optimizer
        self._count = len(strategy.extended.worker_devices)
        self._workers = max(int(strategy.num_replicas_in_sync) // self._count, 1)
        self._joint: Joint | None = None
        self._inside = 0  # so many replicas are in their step
        self._hooks = ExitStack()

    def begin(self) -> None:
        """Forget a step that was left in the middle."""
        self._joint = None

    def enter(self, data: Value) -> bool:
        """Begin with the step of the calling replica; False where it cannot tell which one it is (a TPU)."""
        replica = _replica()
        if replica is None:
            return False
        if self._joint is None or replica in self._joint.parts or self._joint.graph is not _graph():
            self._joint = Joint(self._count, self._workers, self._optimizer)
        self._joint.parts[replica] = Part(data)
        return True

    @contextmanager
    def hooked(self, hooks: Callable[[Self], AbstractContextManager[None]]) -> Iterator[None]:
        """Hold `hooks` from the first replica that comes to the last that leaves: there is just one model."""
        if not self._inside:
            self._hooks.enter_context(hooks(self))
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._hooks.close()

    @property
    def losses(self) -> dict[str, Tensor]:
        """The losses of a replica by where they come from."""
        return next(iter(self._joint.parts.values())).losses if self._joint is not None else {}

    @property
    def operations(self) -> dict[str, list[str]] | None:
        """The risky operations in the graph."""
        return self._joint.operations if self._joint is not None else None

    def known_loss(self) -> Tensor | None:
        """Return None: no replica knows the loss of all."""
        return None

    def note_loss(self, source: str, loss: Tensor) -> None:
        """Remember the loss that `source` was given; the last one of a source counts."""
        part = self._part()
        if part is not None and loss is not None:
            part.losses[source] = loss

    def note_apply(
        self, optimizer: Optimizer, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Note what `apply` is to be given, before it is called; the last replica measures it."""
        given = list(gradients)
        joint, part = self._joint, self._part()
        pairs = [pair for pair in zip(given, variables, strict=False) if measure.is_measurable(pair[0])]
        if joint is None or part is None or not pairs:
            return given
        index = len(part.gradients)
        part.gradients.append([gradient for gradient, _ in pairs])
        if joint.is_last(lambda one: len(one.gradients) > index):
            if joint.operations is None:
                joint.operations = risky_operations()
            with tf.device(None), tf.name_scope(OWN_SCOPE):
                joint.measure(optimizer, index, [variable for _, variable in pairs])
        return given

    def finish(self, result: Value, counter: Value) -> tuple[RowShape, Tensor, Tensor, str] | None:
        """Return shape, step, row and where the loss comes from, for the last replica; for others None."""
        joint, part = self._joint, self._part()
        if joint is None or part is None:
            return None
        if isinstance(result, dict) and result.get("loss") is not None:
            part.losses["returned"] = result["loss"]
        part.is_over = True
        if not joint.is_last(lambda one: one.is_over):
            return None
        with tf.device(None), tf.name_scope(OWN_SCOPE):
            number = counter.read_value()
            shape, row, source = joint.row(number)
        return shape, number, row, source

    def _part(self) -> Part | None:
        """Return the notes of the calling replica; None in a branch, where Keras cannot update either."""
        joint, replica = self._joint, _replica()
        if joint is None or replica is None or joint.graph is not _graph():
            return None
        return joint.parts.get(replica)


def adds_up(optimizer: Optimizer) -> bool:
    """Return whether the gradients of all replicas are added up: Keras 3.3 asks for it too late, in vain."""
    bases = [vars(base) for base in type(inner_of(optimizer)).__mro__ if base.__module__ == _DISTRIBUTING]
    updates = [base["_backend_update_step"] for base in bases if "_backend_update_step" in base]
    return all("_all_reduce_sum_gradients" in update.__code__.co_names for update in updates)


def _replica() -> int | None:
    context = tf.distribute.get_replica_context()
    replica = None if context is None else tf.get_static_value(context.replica_id_in_sync_group)
    return None if replica is None else int(replica)


@contextmanager
def plain_variables() -> Iterator[None]:
    """Let variables be made as if there were no strategy: one each, of which no replica has a copy."""
    with tf.init_scope(), tf.device("CPU:0"), tf.variable_creator_scope(_plain):
        yield


def _plain(next_creator: Callable[..., Any], **options: Any) -> Any:  # noqa: ANN401 - TensorFlow has no types
    return _plain_class()(options["initial_value"], trainable=options["trainable"], name=options["name"])


@functools.cache
def _plain_class() -> Any:  # noqa: ANN401
    """Return the class of a variable that no strategy has had a hand in."""
    with tf.Graph().as_default():
        return type(tf.Variable(0.0))


def _is_optimised(part: Part, source: str) -> bool:
    """Return whether a metric was given the very loss that is optimised, divided by the replicas."""
    loss = part.losses[source]
    return any(one is loss for name, one in part.losses.items() if name not in MEANS)


def _sum(shares: Sequence[Any]) -> Value:
    if len(shares) == 1:
        return shares[0]
    if not isinstance(shares[0], tf.IndexedSlices):
        return tf.add_n(list(shares))
    values = tf.concat([share.values for share in shares], 0)
    return tf.IndexedSlices(values, tf.concat([share.indices for share in shares], 0), shares[0].dense_shape)


def _graph() -> Value:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _f64(value: Value) -> Tensor:
    return tf.cast(value, tf.float64)
