"""Programs: small Keras trainings, each in a process of its own under the reporter, and what became of each.

A program defines EXPECT, what is known about it, and either `run(callbacks)`, a fit, or
`run_custom(reporter)`, a loop of its own.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scoring.rules import CAUSE, PROGRAM_NAMED_BY, PROGRAM_NOTE_IS_ENOUGH
from server_process import ServerProcess

TIMEOUT_S = 240
ONSET_STEPS = 2  # a sharp onset may be told so many steps off
SHARP = ("sudden_nan", "nan_from_start")
LOUD = ("critical", "warning")

Expect = Mapping[str, Any]
Told = Mapping[str, Any]  # an incident as the interface gives it


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """What was told about one program; None where its label does not say."""

    name: str
    label: str
    is_healthy: bool
    is_whole: bool
    is_ok: bool
    told: tuple[str, ...]
    is_seen: bool | None = None
    is_named: bool | None = None
    is_single: bool | None = None
    is_onset_right: bool | None = None
    is_layer_right: bool | None = None
    is_cause_right: bool | None = None


def run_all(folder: Path, server: ServerProcess, names: Sequence[str] = ()) -> Iterator[ProgramOutcome]:
    """Run the programs of a folder one after the other."""
    for path in sorted(folder.glob("*.py")):
        if not path.name.startswith("_") and (not names or path.stem in names):
            expect = expectation(path.read_text())
            steps = _run(path, server.url)
            incidents, last_step = _asked(server.url, path.stem)
            yield judge(path.stem, expect, incidents, is_whole=steps is not None and last_step == steps - 1)


def expectation(source: str) -> Expect:
    """Return the EXPECT of a program without running it."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["EXPECT"]:
            expect: Expect = ast.literal_eval(node.value)
            return expect
    raise ValueError("a program without EXPECT = {...}")


def judge(name: str, expect: Expect, incidents: Sequence[Told], *, is_whole: bool) -> ProgramOutcome:
    """Return what the incidents are worth; a failing program is judged on its first loud one."""
    ordered = sorted(incidents, key=lambda incident: int(incident["detected_step"]))
    loud = [incident for incident in ordered if incident["severity"] in LOUD]
    label, told = str(expect["label"]), tuple(str(incident["kind"]) for incident in ordered)
    if expect["healthy"]:
        is_calm = len(loud) <= 1 and all(incident["severity"] != "critical" for incident in loud)
        return ProgramOutcome(name, label, True, is_whole, is_calm and is_whole, told, is_seen=bool(loud))
    first = next(iter(ordered if label in PROGRAM_NOTE_IS_ENOUGH else loud), None)
    is_named = first is not None and first["kind"] in _named_by(label)
    is_single = len(loud) <= 1
    return ProgramOutcome(
        name, label, False, is_whole, is_named and is_single and is_whole, told,
        is_seen=first is not None, is_named=is_named, is_single=is_single,
        is_onset_right=_onset_right(label, expect, first),
        is_layer_right=_layer_right(expect, first),
        is_cause_right=_cause_right(label, first),
    )  # fmt: skip


def _named_by(label: str) -> frozenset[str]:
    return PROGRAM_NAMED_BY.get(label) or PROGRAM_NAMED_BY[label.split(":")[0]]


def _onset_right(label: str, expect: Expect, first: Told | None) -> bool | None:
    if not label.startswith(SHARP) or first is None or expect.get("onset_step") is None:
        return None
    return abs(int(first["onset_step"]) - int(expect["onset_step"])) <= ONSET_STEPS


def _layer_right(expect: Expect, first: Told | None) -> bool | None:
    if not expect.get("first_bad"):
        return None
    layer = str((first or {}).get("layer") or "")
    return layer.split("/")[0] == str(expect["first_bad"]).split("/")[0]


def _cause_right(label: str, first: Told | None) -> bool | None:
    if label not in CAUSE:
        return None
    causes = (first or {}).get("causes") or [{}]
    return causes[0].get("cause") in CAUSE[label]


def _run(path: Path, url: str) -> int | None:
    """Run a program; return how many steps it made, or None if it failed."""
    words = [sys.executable, "-m", "scoring.one_program", str(path), url, path.stem]
    environ = {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=TIMEOUT_S, env=child_environ(**environ), check=False
    )
    if done.returncode:
        sys.stderr.write(done.stderr[-800:])
        return None
    return int(done.stdout.split()[-1])


def child_environ(**more: str) -> dict[str, str]:
    """Return the environment of a program: on the CPU, whatever there is, so that runs can be compared."""
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", **more}


def _asked(url: str, run_id: str) -> tuple[list[Told], int | None]:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/runs/{run_id}", timeout=30) as answer:
            last_step: int | None = json.load(answer)["last_step"]
        with urllib.request.urlopen(f"{url}/api/v1/runs/{run_id}/incidents", timeout=30) as answer:
            incidents: list[Told] = json.load(answer)["incidents"]
    except urllib.error.HTTPError:
        return [], None
    return incidents, last_step
