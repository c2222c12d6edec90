"""Run a failing program under the reporter, with or without what a snippet does to it, and judge its rows."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np

from training import RecordingSender, recorded
from trainvitals import HealthReporter, Reporter
from trainvitals.rows import Rows
from trainvitals.wire import Event, Hello, Layer, Layout
from trainvitals_server.batch import Batch, Series
from trainvitals_server.fold import RunFold
from trainvitals_server.incident import Incident

Names = dict[str, Any]  # what the reader of a snippet has: model, x, y, ... or functions of their own
DIVERGES = frozenset({"gradual_divergence", "fast_divergence", "immediate_blowup", "exploding_gradient"})
TURNS_BAD = frozenset({"sudden_nan", "nonfinite_gradient", "immediate_blowup", "nonfinite_weight"})
SESSION = "s"
MACHINE = "slow_steps"  # is not the program's doing
NORMAL = "transient_overflow"  # of any training in float16


@dataclass(frozen=True, slots=True)
class Told:
    """What a run's losses were, what was said of it, and whether its weights are finite at the end."""

    losses: list[float]
    incidents: list[Incident]
    weights_are_finite: bool

    @property
    def first(self) -> Incident:
        """The first loud incident; where there is none, the first that is more than a scaler's doing."""
        told = [incident for incident in self.incidents if incident.kind != NORMAL]
        return next((incident for incident in told if incident.severity != "info"), told[0])


def fit(names: Names, reporter: Any) -> None:  # noqa: ANN401 (a callback)
    """Train the model as it is compiled, on x and y."""
    options = names.get("options", {})
    callbacks = [reporter, *names.get("callbacks", ())]
    names["model"].fit(names["x"], names.get("y"), verbose=0, callbacks=callbacks, shuffle=False, **options)


@dataclass(frozen=True, slots=True)
class Program:
    """A program that fails; `prepare` makes what a snippet finds, `train` goes on with what it left."""

    cause: str
    kinds: frozenset[str]
    prepare: Callable[[], Names]
    train: Callable[[Names, Any], None] = fit
    is_loop: bool = False
    is_first: bool = True  # the cause is the first of those that are told
    seed: int = 1
    leaves: frozenset[str] = frozenset()  # kinds of info that are still told of the cured program, rightly

    def run(self, snippet: str = "") -> Told:
        """Train, after the snippet was executed where a user would put it."""
        policy = keras.config.dtype_policy()
        keras.utils.set_random_seed(self.seed)
        with TemporaryDirectory() as folder:
            kind: Any = Reporter if self.is_loop else HealthReporter
            reporter = kind(spool_dir=folder)
            recorder = recorded(reporter)
            try:
                names = self.prepare()
                execute(snippet, f"snippet_{self.cause}.py", names)
                self.train(names, reporter)
            finally:
                keras.config.set_dtype_policy(policy)
        weights = [np.isfinite(weight).all() for weight in names["model"].get_weights()]
        return Told(recorder.values("loss"), incidents_of(recorder), all(weights))


def execute(text: str, name: str, names: Names) -> None:
    """Execute a text as if it were a file, whose lines TensorFlow can read."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), names)


def incidents_of(recorder: RecordingSender) -> list[Incident]:
    """Return what the server says of the rows that were sent, in their order."""
    fold = RunFold("run")
    layouts = recorder.layouts
    environment = next((known for _, known in layouts if known is not None), None)
    hello = Hello(run_id="run", session_id=SESSION)
    fold.hello(hello)
    for number, (layers, known) in enumerate(layouts, start=1):
        fold.layout(
            0, SESSION, Layout(seq=1, layout_id=number, layers=layers, environment=known or environment)
        )
    for piece in recorder.pieces:
        layers = layouts[piece.layout_id - 1][0] if piece.layout_id else []
        fold.rows(0, SESSION, batch_of(piece, layers))
    for kind, step, data in recorder.events:
        fold.event(0, SESSION, Event(seq=1, step=step, kind=kind, data=data))  # type: ignore[arg-type]
    return [incident for incident in fold.incidents() if incident.kind != MACHINE]


def batch_of(piece: Rows, layers: Sequence[Layer]) -> Batch:
    """Return the rows as the server decodes them."""

    def series(cells: tuple[Any, Any]) -> Series:
        values, present = cells
        there = np.ones(values.shape, bool) if present is None else present
        return Series(values.astype(np.float64), there)

    columns = {name: series(cells) for name, cells in piece.columns.items()}
    layer_columns = {name: series(cells) for name, cells in piece.layer_columns.items()}
    return Batch(piece.steps, columns, layer_columns, tuple(layers))
