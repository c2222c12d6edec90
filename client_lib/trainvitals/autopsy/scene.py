"""Scene: one failing step, as the capture kept it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from trainvitals.autopsy.seen import UNSEEN, Seen
from trainvitals.probe.types import Value

WeightsFrom = Literal["before_step", "mostly_before_step", "snapshot", "after_step", "none"]


@dataclass(frozen=True, slots=True)
class Scene:
    """What one step was run with, and how to run it again."""

    step: int
    model: Value  # keras.Model (built, compiled), or None in a custom loop
    run: Callable[
        [Value], Value
    ]  # the user's own `train_step`, or a loop's function: (batch) -> loss | (loss, ...)
    data: Value  # nested structure of numpy arrays or tensors, as `run` gets it
    state: Sequence[tuple[Value, Value]]  # (variable, value before the step); others are left as they are
    weights_from: WeightsFrom  # see Report
    optimizers: Sequence[Value] = ()
    counts_overflow: bool = False  # gradients that overflow only for their loss scale are a failure too
    seen: Seen = UNSEEN
    last_well: int | None = None  # the last step before this one that was seen, and was finite
    is_validation: bool = False  # after the step; nothing is differentiated

    @property
    def is_plain(self) -> bool:
        """Whether the step is Keras's own `train_step`, with one optimizer."""
        step = getattr(type(self.model), "train_step", None)
        is_keras_own = getattr(step, "__module__", "").split(".")[0] in ("keras", "tf_keras")
        return is_keras_own and len(self.optimizers) < 2 and not self.is_validation

    @property
    def all_optimizers(self) -> list[Value]:
        """The optimizers that were named, that of the model, and those below loss scalers; each once."""
        named = [*self.optimizers, getattr(self.model, "optimizer", None)]
        inner = [getattr(one, "inner_optimizer", None) for one in named]
        return list({id(one): one for one in (*named, *inner) if one is not None}.values())

    @property
    def variables(self) -> list[Value]:
        """Every variable that is known beforehand to take part; each once."""
        known = [variable for variable, _ in self.state]
        if self.model is not None:
            known += [*self.model.variables, *getattr(self.model, "metrics_variables", ())]
        known += [variable for one in self.all_optimizers for variable in _variables_of(one)]
        return list({id(variable): variable for variable in known}.values())

    @property
    def weights(self) -> list[Value]:
        """The trainable variables: of the model, or of the state where there is no model."""
        if self.model is not None:
            return list(self.model.trainable_variables)
        of_optimizers = {id(one) for optimizer in self.all_optimizers for one in _variables_of(optimizer)}
        listed = [variable for variable, _ in self.state if id(variable) not in of_optimizers]
        return [variable for variable in listed if getattr(variable, "trainable", False)]

    @property
    def statistics(self) -> list[Value]:
        """The model's weights that are not trained, as the averages of a BatchNormalization."""
        return [] if self.model is None else list(getattr(self.model, "non_trainable_weights", ()))


def _variables_of(optimizer: Value) -> Sequence[Value]:
    variables = optimizer.variables
    return variables() if callable(variables) else variables  # type: ignore[no-any-return]
