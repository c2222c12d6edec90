"""A bundle that was damaged or tampered with is refused in one line, and nothing of it runs."""

from __future__ import annotations

import argparse
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from trainvitals import replay
from trainvitals.autopsy import bundle
from trainvitals.autopsy.examine import Scene
from trainvitals.autopsy.report import Report

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
Damage = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.full((4, 2), np.nan, np.float32)
    state = [(variable, np.array(variable)) for variable in model.variables]
    scene = Scene(
        step=3, model=model, run=model.train_step, data=(x, x[:, :1]), state=state, weights_from="before_step"
    )
    report = Report(step=3, found="input", is_reproduced=True)
    return bundle.write(scene, report, tmp_path, "run")


def answered(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = replay.run(argparse.Namespace(bundle=folder, json=False, script=None))
    return code, capsys.readouterr().err


def manifest(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "bundle.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return damage


def cut(name: str, size: int) -> Damage:
    return lambda folder: os.truncate(folder / name, size)


def text(content: str) -> Damage:
    return lambda folder: (folder / "bundle.json").write_text(content)


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (os.mkdir, ("ran",))


def pickled(folder: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, a0=np.array([Evil()], dtype=object))
    (folder / "state.npz").write_bytes(buffer.getvalue())


@pytest.mark.parametrize(
    "damage",
    [
        text(""),
        text("[]"),
        text('{"format": 1}'),
        text("[" * 100_000),
        cut("bundle.json", 100),
        cut("state.npz", 100),
        cut("batch.npz", 0),
        pickled,
        manifest(lambda content: content.update(dtypes=["nonsense"] * 2)),
        manifest(lambda content: content.update(batch={"tensor": 99, "dtype": "float32"})),
        manifest(lambda content: content.update(batch=5)),
        manifest(lambda content: content.update(weights_from=5)),
        manifest(lambda content: content.update(format=2)),
        manifest(lambda content: content.pop("places")),
    ],
    ids=[
        "empty", "a list", "a format alone", "too deep", "cut", "cut state", "no batch", "pickled",
        "dtypes", "a tensor too many", "no form", "no origin", "a later format", "no places",
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused_in_one_line(
    damage: Damage, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    damage(folder)
    code, said = answered(folder, capsys)
    assert code == 2
    assert said.startswith(f"cannot replay {folder}: ")
    assert said.count("\n") == 1
    assert not Path("ran").exists()


def test_one_that_is_whole_is_not_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answered(folder, capsys) == (0, "")
