"""Show: starts the trainings, one at a time, asks the server what it found, and tells it in a table."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PROGRAMS = {
    "float16_mask": "float16 mask",
    "late_adam": "late Adam",
    "learning_rate": "learning rate",
    "healthy": "healthy",
}
TRAININGS_AT_ONCE = 1  # one story after the other, slow enough to watch; the other core serves the page
TRAINING_TIMEOUT_S = 600
JUDGED_TIMEOUT_S = 30.0
POLL_S = 0.5
CALM_POLLS = 4  # answers in a row that say the same: the detectors are done
_OUR_LINES = "trainvitals"  # how the reporter's lines begin; TensorFlow's own stay in the log


@dataclass(slots=True, kw_only=True)
class Act:
    """One training and what was told of it; `notes` are incidents that ask for nothing (severity info)."""

    program: str
    run_id: str
    exit_code: int | None = None
    steps: int = 0
    incidents: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What it is called on the page."""
        return PROGRAMS[self.program]


class Show:
    """The trainings of one demo on the server at `url`."""

    def __init__(self, url: str, console: Console, scratch: Path) -> None:
        self._url, self._console, self._scratch = url, console, scratch
        self._api = httpx.Client(base_url=f"{url}/api/v1", trust_env=False)
        self._pause = threading.Event()
        mark = secrets.token_hex(4)
        self._acts = [Act(program=program, run_id=f"demo-{program}-{mark}") for program in PROGRAMS]

    @property
    def is_complete(self) -> bool:
        """Whether every training ran to its end."""
        return all(act.exit_code == 0 for act in self._acts)

    def play(self, *, is_fixed: bool) -> None:
        """Run every training and note what the server says of it."""
        with ThreadPoolExecutor(TRAININGS_AT_ONCE) as pool:
            list(pool.map(lambda act: self._perform(act, is_fixed), self._acts))

    def as_json(self) -> dict[str, object]:
        """Return what `--json` prints."""
        runs = [
            {
                "name": act.name,
                "run_id": act.run_id,
                "steps": act.steps,
                "incidents": act.incidents,
                "notes": act.notes,
            }
            for act in self._acts
        ]
        return {"url": self._url, "runs": runs}

    def print_table(self) -> None:
        """Print what each training was told."""
        table = Table("training", "steps", "what was told", "why", "what to change", show_lines=True)
        for act in self._acts:
            if not act.incidents:
                table.add_row(act.name, str(act.steps), "[green]no incident[/green]", "", "")
            for incident in act.incidents:
                table.add_row(act.name, str(act.steps), *_cells(incident))
        self._console.print()
        self._console.print(table)

    def _perform(self, act: Act, is_fixed: bool) -> None:
        self._console.print(f"[bold]{act.name}[/bold] | training")
        self._train(act, is_fixed)
        if act.exit_code:
            self._console.print(f"[red]{act.name}[/red] | ended with code {act.exit_code}")
        found = self._await_verdict(act.run_id)
        act.incidents = [incident for incident in found if incident["severity"] != "info"]
        act.notes = [incident for incident in found if incident["severity"] == "info"]
        run = self._api.get(f"/runs/{act.run_id}").raise_for_status().json()
        act.steps = (run["last_step"] if run["last_step"] is not None else -1) + 1
        told = ", ".join(incident["kind"] for incident in act.incidents) or "no incident"
        self._console.print(f"[bold]{act.name}[/bold] | {act.steps} steps, {told}")

    def _train(self, act: Act, is_fixed: bool) -> None:
        command = [sys.executable, "-m", "trainvitals_server.demo.training", act.program, act.run_id]
        environ = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",  # the programs are tuned for a CPU, and two of them run at once
            **os.environ,
            "TRAINVITALS_URL": self._url,
            "TRAINVITALS_SPOOL": str(self._scratch / "spool"),  # among the user's own it would displace some
        }
        process = subprocess.Popen(
            command + ["--fixed"] * is_fixed,
            env=environ,
            cwd=self._scratch,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = self._echo(act, process)
        act.exit_code = process.wait(TRAINING_TIMEOUT_S)
        if act.exit_code:
            self._console.print("\n".join(lines[-20:]), markup=False)

    def _echo(self, act: Act, process: subprocess.Popen[str]) -> list[str]:
        """Print the reporter's lines as they come; return all."""
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith(_OUR_LINES):
                self._console.print(f"[bold]{act.name}[/bold] | {escape(lines[-1])}")
        return lines

    def _await_verdict(self, run_id: str) -> list[dict[str, Any]]:
        """Return the run's incidents once they no longer change: detection follows a moment behind."""
        before: list[dict[str, Any]] | None = None
        calm, left_s = 0, JUDGED_TIMEOUT_S
        while calm < CALM_POLLS and left_s > 0:
            self._pause.wait(POLL_S)
            left_s -= POLL_S
            answer = self._api.get(f"/runs/{run_id}/incidents").raise_for_status()
            found: list[dict[str, Any]] = answer.json()["incidents"]
            calm = calm + 1 if found == before else 0
            before = found
        return [incident for incident in before or [] if incident["state"] != "withdrawn"]


def _cells(incident: dict[str, Any]) -> tuple[str, str, str]:
    cause: dict[str, Any] = {"cause": "unknown", "confidence": 0, "fix": ""}
    if incident["causes"]:
        cause = incident["causes"][0]
    nonfinite = incident["nonfinite_step"]
    told = [f"{_words(incident['kind'])}, {incident['severity']}", f"since step {incident['onset_step']}"]
    if nonfinite is not None:
        told.append(f"non-finite at {nonfinite}, {incident['lead_steps'] or 0} steps after the warning")
    told.append({True: "weights intact", False: "weights lost", None: ""}[incident["weights"]["usable"]])
    why = f"{_words(cause['cause'])} ({cause['confidence']:.0%})\n{incident['verdict']}"
    return escape("\n".join(filter(None, told))), escape(why), escape(cause["fix"])


def _words(name: str) -> str:
    return name.replace("_", " ")
