"""Whatever happens between a training and its server, its numbers are the same and no row is lost unsaid."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from relay import Fault, Relay, relaying
from server_process import ServerProcess, running_server
from trainvitals import sync

TIMEOUT_S = 60.0
NOWHERE = "http://127.0.0.1:9"  # the port of the discard service: nobody listens
PROGRAM = Path(__file__).parents[1] / "numpy_training.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


class Training:
    """A training in a process of its own."""

    def __init__(self, url: str, spool: Path, *arguments: str) -> None:
        command = [sys.executable, str(PROGRAM), url, str(spool), *arguments]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def trained(self) -> dict[str, Any]:
        """Wait for the end of the training; return its steps, and weights with and without a reporter."""
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> tuple[dict[str, dict[str, int]], str]:
        """Let the process end; return what it dropped of each run, and what it said."""
        with self._process as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.close()  # it may go on
            dropped: dict[str, dict[str, int]] = json.loads(process.stdout.read())
            said = process.stderr.read()
            assert process.wait(TIMEOUT_S) == 0, said
        return dropped, said


def stored(server: ServerProcess, run: str) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the steps that have all their numbers, and the gaps that the run's page shows."""
    url = f"{server.url}/api/v1/runs/{run}"
    with urllib.request.urlopen(f"{url}/export.jsonl", timeout=TIMEOUT_S) as answer:
        rows = [json.loads(line) for line in answer]
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        gaps = json.load(answer)["gaps"]
    return [row["step"] for row in rows if row.keys() >= {"loss", "grad_norm"}], gaps


def synced(spool: Path, server: ServerProcess) -> None:
    """Upload what is left of ended sessions."""
    if spool.exists():
        assert sync.run(argparse.Namespace(directory=spool, url=server.url, token=None)) == 0


def relay_for(fault: str, server: ServerProcess, stack: ExitStack) -> Relay | None:
    """Return a relay with a fault, where it takes one."""
    kinds: dict[str, Fault] = {
        "slow": "slow", "500": "refuses", "acks_dropped": "drops_acks", "closing": "closes",
        "disk_full": "refuses", "exit_in_a_flush": "holds_acks",
    }  # fmt: skip
    if fault not in kinds:
        return None
    return stack.enter_context(relaying(server.websocket_url, kinds[fault]))


@pytest.mark.parametrize(
    "fault",
    ["no_server", "slow", "500", "acks_dropped", "closing", "disk_full", "two_reporters", "exit_in_a_flush"],
)
def test_a_training_is_the_same_and_each_of_its_rows_is_stored_or_told_as_lost(
    fault: str, server: ServerProcess, tmp_path: Path
) -> None:
    runs = [f"{fault}-{number}" for number in range(2 if fault == "two_reporters" else 1)]
    flags = {"disk_full": ["--disk-full", "--waits"], "exit_in_a_flush": [], "no_server": []}
    with ExitStack() as stack:
        relay = relay_for(fault, server, stack)
        url = NOWHERE if fault == "no_server" else relay.url if relay is not None else server.url
        training = Training(url, tmp_path / "spool", *runs, *flags.get(fault, ["--waits"]))
        trained = training.trained()
        if relay is not None and fault in ("500", "disk_full"):
            assert relay.has_struck.wait(TIMEOUT_S)  # the training may be over before it is even asked
            relay.is_open.set()  # the server is well again
        dropped, _ = training.end()
        if relay is not None:
            assert relay.faults > 0 or fault == "slow"
            relay.is_open.set()
    synced(tmp_path / "spool", server)
    assert trained["weights"] == trained["control"]
    for run in runs:
        steps, gaps = stored(server, run)
        lost = [step for gap in gaps for step in range(gap["first_step"], gap["last_step"] + 1)]
        assert sorted([*steps, *lost]) == list(range(trained["steps"]))
        assert len(lost) == sum(gap["steps_lost"] for gap in gaps) == sum(dropped[run].values())
        assert bool(lost) == (fault == "disk_full")


def test_where_neither_server_nor_disk_takes_them_the_number_of_lost_rows_is_said(tmp_path: Path) -> None:
    training = Training(NOWHERE, tmp_path / "spool", "lost", "--disk-full")
    trained = training.trained()
    dropped, said = training.end()
    assert trained["weights"] == trained["control"]
    (line,) = [line for line in said.splitlines() if "steps are lost if the process ends now" in line]
    assert int(line.split()[0]) + sum(dropped["lost"].values()) == trained["steps"]
