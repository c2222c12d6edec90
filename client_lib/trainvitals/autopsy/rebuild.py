"""Rebuild: the model of a bundle in a fresh process.

Where Keras's own description of it is enough, from that. Else the user's program is run again up to where it
calls `fit`: at that point it has made the very model, with its classes, losses and `train_step`. Nothing is
trained: the call is caught. Of a function the description holds a name or bare code only: a loss of the
user's called `dice` would become that of Keras, and a lambda lacks the modules that its file imports.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import keras

from trainvitals.autopsy.bundle import Bundle
from trainvitals.autopsy.rebuild_loop import Reached, catching_steps
from trainvitals.autopsy.scene import Scene
from trainvitals.probe.optimizers import make_variables, optimizers_of
from trainvitals.probe.types import Model, Value

_FUNCTIONS = ("function", "__lambda__")  # what Keras calls them in a description


class NoModel(Exception):
    """The model could not be made again; the text says what to do."""


def scene_of(bundle: Bundle, script: Path | None) -> Scene:
    """Return the scene of `bundle` with its model, made by `script` or by what the bundle knows.

    Raises:
        NoModel: if neither makes the model.
    """
    if script is not None:
        return _from_script(bundle, script)
    program = Path(bundle.script) if bundle.script and Path(bundle.script).is_file() else None
    is_told_whole = program is None or not _holds_functions(bundle.model_config)
    if is_told_whole and (scene := _from_config(bundle)) is not None:
        return scene
    if program is not None:
        return _from_script(bundle, program)
    raise NoModel(
        "Keras cannot make this model from its description alone, and the program that trained it "
        + (f"is not at {bundle.script} any more" if bundle.script else "was a notebook or a prompt")
        + f": give a program that makes the model and calls {_call_of(bundle)} with --script FILE"
    )


def _from_config(bundle: Bundle) -> Scene | None:
    if bundle.model_config is None or bundle.is_of_tf_keras:
        return None
    try:
        model = keras.saving.deserialize_keras_object(bundle.model_config, safe_mode=False)
        return bundle.scene(_ready(model, bundle))
    except Exception:  # classes and functions of the user's that are not known here raise many things
        return None


def _holds_functions(config: Any) -> bool:  # noqa: ANN401 - what JSON holds
    """Return whether a description of Keras's refers to functions, be they the user's or its own."""
    if isinstance(config, dict):
        is_function = config.get("class_name") in _FUNCTIONS
        return is_function or any(_holds_functions(value) for value in config.values())
    return isinstance(config, list) and any(_holds_functions(value) for value in config)


def _from_script(bundle: Bundle, script: Path) -> Scene:
    try:
        with _catching_fit(bundle), catching_steps(bundle), _as_program(script, bundle.arguments):
            runpy.run_path(str(script), run_name="__main__")
    except Reached as reached:
        return reached.scene
    except SystemExit:
        pass
    raise NoModel(f"{script} ended without calling {_call_of(bundle)} of a model that fits the bundle")


def _call_of(bundle: Bundle) -> str:
    return "reporter.step" if bundle.is_of_loop else "fit"


@contextlib.contextmanager
def _catching_fit(bundle: Bundle) -> Iterator[None]:
    """Let the first call of `fit` of a model that fits the bundle end the program; others do nothing.

    Nor is any model saved meanwhile: the program would put one that was not trained over one that was.
    """

    def fit(self: Model, *args: Value, **kwargs: Value) -> Value:
        if bundle.is_of_loop:
            return keras.callbacks.History()
        try:
            scene = bundle.scene(_ready(self, bundle))
        except (ValueError, AttributeError):
            return keras.callbacks.History()  # a model that was trained before the one that failed
        raise Reached(scene)

    def nothing(self: Model, *args: Value, **kwargs: Value) -> None:
        return None

    with contextlib.ExitStack() as stack:
        for kind in _kinds_of_model(bundle):
            stack.enter_context(_replaced(kind, "fit", fit))
            for name in ("save", "save_weights", "export"):
                stack.enter_context(_replaced(kind, name, nothing))
        yield


def _kinds_of_model(bundle: Bundle) -> list[Any]:
    """Return the classes whose `fit` the program may call."""
    return [keras.Model, *([import_module("tf_keras").Model] if bundle.is_of_tf_keras else [])]


@contextlib.contextmanager
def _replaced(kind: Any, name: str, method: Value) -> Iterator[None]:  # noqa: ANN401 - Keras has no types
    """Let all models of a kind have this method."""
    holder = next(one for one in kind.__mro__ if name in vars(one))
    original = vars(holder)[name]
    setattr(holder, name, method)
    try:
        yield
    finally:
        setattr(holder, name, original)


@contextlib.contextmanager
def _as_program(script: Path, arguments: list[str]) -> Iterator[None]:
    words, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = words, path


def _ready(model: Model, bundle: Bundle) -> Model:
    """Return the model with all its variables: `fit` makes those of the optimizer in its first step."""
    if not model.built:
        _build(model, bundle.data)
    for optimizer in optimizers_of(model):
        make_variables(optimizer, model.trainable_variables)
    return model


def _build(model: Model, data: Any) -> None:  # noqa: ANN401 - the user's batch
    inputs, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    model(inputs, training=False)
