"""Bundle: a failing step in a folder on the training machine, so that it can be run again later.

A folder holds `bundle.json` (what is where, versions, the report), `batch.npz`, `state.npz` and, where Keras
can describe it, `model.json`. Nothing of it is ever sent. At most `MAX_BUNDLES` are kept, the oldest go.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import msgspec
import numpy as np

from trainvitals.autopsy.packing import Arrays, pack, plain, restored, unpack
from trainvitals.autopsy.report import Report
from trainvitals.autopsy.scene import Scene, WeightsFrom
from trainvitals.autopsy.seen import UNSEEN, Seen
from trainvitals.probe.environment import versions
from trainvitals.probe.kinds import family_of
from trainvitals.probe.optimizers import optimizers_of, variables_of
from trainvitals.probe.types import Model, Value

FORMAT = 1
FOLDER = "bundles"  # below the spool
MAX_BUNDLES = 10
MAX_BYTES = 256 << 20  # of one bundle
MIN_FREE_BYTES = 1 << 30  # that stay on the disk
MODE = 0o700


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was read."""

    folder: Path
    step: int
    weights_from: WeightsFrom
    counts_overflow: bool
    data: Any
    places: list[list[Any]]  # where each value belongs: ["model", 3], ["optimizer", 0, 5], ["loop", 2]
    values: list[Any]
    model_config: dict[str, Any] | None
    script: str
    arguments: list[str]
    report: Report
    seen: Seen = UNSEEN
    last_well: int | None = None
    is_validation: bool = False

    def scene(self, model: Model) -> Scene:
        """Return the scene, with a model that was built anew.

        Raises:
            ValueError: if the model is another one.
        """
        variables = [_variable(model, place) for place in self.places]
        return self._scene(model, variables, optimizers_of(model), model.train_step)

    @property
    def is_of_tf_keras(self) -> bool:
        """Whether the model is one of tf_keras."""
        return self.model_config is not None and self.model_config.get("module") == "tf_keras"

    @property
    def is_of_loop(self) -> bool:
        """Whether the step is that of a loop, a function of the batch."""
        return all(place[0] == "loop" for place in self.places)

    def loop_scene(self, variables: Sequence[Any], optimizers: Sequence[Any], run: Value) -> Scene:
        """Return the scene of a loop, with variables, optimizers and step that were made anew.

        Raises:
            ValueError: if the loop is another one.
        """
        if len(variables) != len(self.values):
            raise ValueError(f"the loop is another one: {len(variables)} variables, not {len(self.values)}")
        return self._scene(None, variables, optimizers, run)

    def _scene(self, model: Model, variables: Sequence[Any], optimizers: Sequence[Any], run: Value) -> Scene:
        state = list(zip(variables, self.values, strict=True))
        for variable, value in state:
            if tuple(variable.shape) != tuple(value.shape):
                name = getattr(variable, "path", variable.name)
                raise ValueError(
                    f"the model is another one: {name} has the shape {tuple(variable.shape)}, "
                    f"in the bundle it is {tuple(value.shape)}"
                )
        return Scene(
            step=self.step,
            model=model,
            run=run,
            data=self.data,
            state=state,
            weights_from=self.weights_from,
            optimizers=optimizers,
            counts_overflow=self.counts_overflow,
            seen=self.seen,
            last_well=self.last_well,
            is_validation=self.is_validation,
        )


def write(scene: Scene, report: Report, directory: Path, run_id: str) -> Path:
    """Write a bundle below `directory` and return its folder.

    Raises:
        OSError: if there is no room for it, or it cannot be written.
        TypeError: if the batch holds what cannot be written.
    """
    arrays: Arrays = []
    form = pack(scene.data, arrays)
    places, values, dtypes = _state(scene)
    values_size = sum(one.nbytes for one in values)
    if sum(one.nbytes for one in arrays) + values_size > MAX_BYTES:
        raise OSError(f"a bundle would take more than {MAX_BYTES >> 20} MiB")
    root = directory / FOLDER
    root.mkdir(MODE, parents=True, exist_ok=True)
    if shutil.disk_usage(root).free < MIN_FREE_BYTES + 2 * MAX_BYTES:
        raise OSError("the disk is nearly full")
    folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-step-{scene.step}-{uuid.uuid4().hex[:8]}"
    new = root / f".{folder.name}"
    new.mkdir(MODE)
    try:
        _save(new / "batch.npz", arrays)
        _save(new / "state.npz", values)
        config = _config_of(scene.model)
        if config is not None:
            (new / "model.json").write_text(config)
        manifest = {
            "format": FORMAT,
            "run_id": run_id,
            "step": scene.step,
            "weights_from": scene.weights_from,
            "counts_overflow": scene.counts_overflow,
            "seen": [scene.seen.loss, scene.seen.gradients],
            "last_well": scene.last_well,
            "is_validation": scene.is_validation,
            "batch": form,
            "places": places,
            "dtypes": dtypes,
            "versions": versions(),
            "script": _script(),
            "arguments": [str(word) for word in sys.argv[1:]],
            "report": msgspec.to_builtins(report),
        }
        (new / "bundle.json").write_text(json.dumps(manifest))
        new.rename(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    _thin_out(root)
    return folder


def read(folder: Path) -> Bundle:
    """Return the bundle in `folder`.

    Raises:
        OSError, ValueError: if there is none.
    """
    manifest = json.loads((folder / "bundle.json").read_text())
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{folder} was written by another version of trainvitals")
    batch, state = _arrays(folder / "batch.npz"), _arrays(folder / "state.npz")
    config = folder / "model.json"
    return Bundle(
        folder=folder,
        step=int(manifest["step"]),
        weights_from=sys.intern(manifest["weights_from"]),  # type: ignore[arg-type]  # a default is left out
        counts_overflow=bool(manifest["counts_overflow"]),
        data=unpack(manifest["batch"], batch),
        places=manifest["places"],
        values=[restored(one, dtype) for one, dtype in zip(state, manifest["dtypes"], strict=True)],
        model_config=json.loads(config.read_text()) if config.is_file() else None,
        script=manifest["script"],
        arguments=manifest["arguments"],
        report=msgspec.convert(manifest["report"], Report),
        seen=Seen(*manifest.get("seen", ())),  # bundles of earlier versions know neither
        last_well=manifest.get("last_well"),
        is_validation=bool(manifest.get("is_validation")),
    )


def _save(path: Path, arrays: Arrays) -> None:
    named: dict[str, Any] = {f"a{place}": one for place, one in enumerate(arrays)}
    np.savez(path, **named)


def _arrays(path: Path) -> list[Any]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
        return [found[f"a{place}"] for place in range(len(found.files))]


def _state(scene: Scene) -> tuple[list[list[Any]], Arrays, list[str]]:
    """Return where the values belong, the values, and their dtypes; what belongs nowhere is left out."""
    known: dict[int, list[Any]] = {}
    if scene.model is None:
        known = {id(one): ["loop", place] for place, (one, _) in enumerate(scene.state)}
    for number, optimizer in enumerate(scene.optimizers if scene.model is not None else ()):
        known |= {id(one): ["optimizer", number, place] for place, one in enumerate(variables_of(optimizer))}
    if scene.model is not None:
        known |= {id(one): ["model", place] for place, one in enumerate(scene.model.variables)}
    kept = [(known[id(variable)], value) for variable, value in scene.state if id(variable) in known]
    dtypes = [value.dtype.name for _, value in kept]
    return [place for place, _ in kept], [plain(value) for _, value in kept], dtypes


def _variable(model: Model, place: Sequence[Any]) -> Value:
    try:
        if place[0] == "model":
            return model.variables[place[1]]
        return variables_of(optimizers_of(model)[place[1]])[place[2]]
    except IndexError:
        raise ValueError("the model is another one: it has fewer variables than that of the bundle") from None


def _config_of(model: Model) -> str | None:
    """Return how Keras would save the model, or None where it cannot."""
    if model is None:
        return None
    if family_of(model) == "tf_keras":  # Keras 3 cannot make it: the program must
        return json.dumps({"module": "tf_keras", "class_name": type(model).__name__})
    try:
        return json.dumps(keras.saving.serialize_keras_object(model))
    except Exception:  # a model's `get_config` is the user's
        return None


def _script() -> str:
    """Return the path of the user's program; "" in a notebook."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(path) if path else ""


def _thin_out(root: Path) -> None:
    """Remove the oldest bundles, and what a killed process left half written."""
    bundles = sorted(one for one in root.iterdir() if one.is_dir())
    finished = [one for one in bundles if not one.name.startswith(".")]
    stale = [one for one in bundles if one.name.startswith(".") and time.time() - one.stat().st_mtime > 3600]
    for one in [*finished[:-MAX_BUNDLES], *stale]:
        shutil.rmtree(one, ignore_errors=True)
