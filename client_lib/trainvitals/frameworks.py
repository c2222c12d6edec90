"""Frameworks: which Keras there is, and what reports the `fit` of a model of it.

The second door, beside the package's own: TensorFlow is imported here, once a model of it is trained, and not
where a model of another backend is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from trainvitals.budget import DEFAULT_SHARE
from trainvitals.probe.kinds import family_of
from trainvitals.probe.types import Model

if TYPE_CHECKING:
    from trainvitals.response import Response
    from trainvitals.session import Session

Way: TypeAlias = Literal["keras", "tf_keras", "metrics"]

_KERAS = ("keras", "tf_keras")
# Under these an optimizer's `apply` may be left out of a step; others call all replicas together within it.
_PLAIN_STRATEGIES = ("_DefaultDistributionStrategy", "OneDeviceStrategy")


class Training(Protocol):
    """The reporter's side of a model in `fit`: what the hooks of Keras are passed on to."""

    is_displaced: bool  # another reporter has our place in this `fit`

    def begin(self, model: Model, params: Mapping[str, Any]) -> None:
        """Begin with a `fit`."""

    def begin_epoch(self, epoch: int) -> None:
        """Begin with an epoch."""

    def arm(self) -> None:
        """Expect one execution."""

    def note(self, batch: int, logs: Mapping[str, Any]) -> None:
        """Note what Keras tells of an execution, in whatever thread that is."""

    def hurry(self, *, is_training_thread: bool) -> None:
        """Read soon, or now."""

    def begin_validation(self) -> None:
        """Expect a validation."""

    def end_validation(self) -> None:
        """Expect steps again."""

    def end_epoch(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Send what there is of the epoch."""

    def end(self) -> None:
        """End the `fit`."""

    def abandon(self) -> None:
        """End what an exception left behind."""


def callback_class() -> Any:  # noqa: ANN401 - a base class that no checker knows
    """Return the base class of callbacks: that of Keras 3, else of tf_keras.

    Either Keras takes callbacks that are of the other.

    Raises:
        ImportError: if there is none.
    """
    for name in _KERAS:
        try:
            found = import_module(name).callbacks.Callback
        except (ImportError, AttributeError):  # not installed, or a part of it is not
            continue
        return found
    raise ImportError(
        "HealthReporter needs Keras, which comes with TensorFlow: pip install tensorflow. "
        "For a loop of your own there is Reporter, which does without"
    )


def way_of(model: Model) -> Way:
    """Return how the training of `model` can be measured: in its graph, or by what Keras logs of it."""
    if family_of(model) == "tf_keras":
        return "tf_keras"
    return "keras" if backend() == "tensorflow" else "metrics"


def backend() -> str:
    """Return what Keras 3 computes with."""
    keras: Any = sys.modules.get("keras")
    return str(keras.config.backend()) if keras is not None else ""


def replicas_of(model: Model) -> int:
    """Return how many replicas of `model` train together in this process."""
    strategy = getattr(model, "distribute_strategy", None)  # of TensorFlow only
    return int(getattr(strategy, "num_replicas_in_sync", 1))


def keeps_no_update_out(model: Model) -> str:
    """Return why no update of `model` can be left out, as the end of a sentence; "" where it can."""
    way, strategy = way_of(model), getattr(model, "distribute_strategy", None)
    if way != "keras":
        return f"with {backend() if way == 'metrics' else 'tf_keras'}"
    if replicas_of(model) > 1:
        return f"with {replicas_of(model)} replicas"
    bases = [base.__name__ for base in type(strategy).__mro__]
    is_plain = strategy is None or any(name in bases for name in _PLAIN_STRATEGIES)
    return "" if is_plain else f"under {bases[0]}, even with one replica"


def training_for(
    way: Way,
    session: Session,
    response: Response,
    on_stop: Callable[[], None],
    overhead_budget: float = DEFAULT_SHARE,
    activations_every: int = 0,
) -> Training:
    """Return what reports a `fit`."""
    if way == "metrics":
        from trainvitals.metrics_fit import MetricsFit

        return MetricsFit(session, backend())
    from trainvitals.fit import Fit
    from trainvitals.probe.adapter import probe_for

    share = overhead_budget if way == "keras" else 0.0
    return Fit(session, response, on_stop, probe_for(way), share, activations_every)
