"""Several processes that train one model: a stream for each rank, one run, and which rank went bad first."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import keras
import pytest

from server_process import running_server
from training import batch, by_hand, small_model
from trainvitals.cluster import Member, member_of
from trainvitals.identity import identify

TIMEOUT_S = 120.0  # of a machine that has other things to do
PROGRAM = Path(__file__).parents[1] / "worker.py"
ROWS = 96  # of each worker, 8 in a step
Found = dict[str, Any]


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def trained(url: str, run_id: str, bad_rank: int, *reporting: int) -> list[str]:
    """Train by two workers, some of which have a reporter; return what they print."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    told = {"TRAINVITALS_URL": url, "TRAINVITALS_RUN_ID": run_id}
    arguments = [str(one) for one in (bad_rank, *reporting)]
    workers = [
        subprocess.Popen(
            [sys.executable, PROGRAM, *arguments],
            env={**os.environ, **told, "TF_CONFIG": task_of(cluster, "worker", rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        answers = [worker.communicate(timeout=TIMEOUT_S) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (_, errors) in zip(workers, answers, strict=True):
        assert worker.returncode == 0, errors[-4000:]
    return [output for output, _ in answers]


def task_of(cluster: Found, kind: str, index: int) -> str:
    """Return a `TF_CONFIG`."""
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def got(url: str) -> Found:
    """Return what the server says."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        found: Found = json.load(answer)
    return found


def exported(url: str, rank: int, name: str) -> dict[int, float]:
    """Return a series of a rank by its steps."""
    with urllib.request.urlopen(f"{url}/export.jsonl?rank={rank}", timeout=TIMEOUT_S) as answer:
        rows = [json.loads(line) for line in answer.read().decode().splitlines()]
    return {row["step"]: float(row[name]) for row in rows if row.get(name) is not None}


@pytest.mark.tensorflow
def test_one_run_of_two_workers_says_which_of_them_went_bad_first(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        trained(server.url, "both", 1, 0, 1)
        run = f"{server.url}/api/v1/runs/both"
        runs = got(f"{server.url}/api/v1/runs")["runs"]
        losses = [exported(run, rank, "loss") for rank in range(2)]
        norms = [exported(run, rank, "grad_norm") for rank in range(2)]
        incidents = got(f"{run}/incidents")["incidents"]
    assert [one["run_id"] for one in runs] == ["both"]
    for rank in range(2):
        x, y = batch(ROWS, seed=rank)
        oracle = by_hand(small_model(), keras.optimizers.SGD(), x[:8], y[:8], 8, 1)[0]
        assert losses[rank][0] == pytest.approx(oracle["loss"], rel=1e-5)
        assert norms[rank][0] == pytest.approx(oracle["grad_norm"], rel=1e-5)
    bad = [[step for step, loss in found.items() if not math.isfinite(loss)] for found in losses]
    assert bad == [[3, 4, 5], [2, 3, 4, 5]]
    assert incidents[0]["rank"] == 1
    assert incidents[0]["why"][0] == "Rank 1 went bad first, at step 2; then rank 0 at step 3."


@pytest.mark.tensorflow
def test_a_worker_without_a_reporter_leaves_the_others_not_waiting(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        first, second = trained(server.url, "one", -1, 0)
        steps = list(exported(f"{server.url}/api/v1/runs/one", 0, "loss"))
    assert steps == list(range(6))
    assert "WEIGHTS" in first
    assert first == second


@pytest.mark.parametrize(
    ("kind", "index", "member"),
    [
        ("chief", 0, Member(0, 3)),
        ("worker", 1, Member(2, 3)),
        ("worker", 5, None),
        ("ps", 0, None),
        ("evaluator", 0, None),
    ],
)
def test_the_rank_is_the_one_that_tensorflow_gives_a_task(
    kind: str, index: int, member: Member | None
) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
    assert member_of({"TF_CONFIG": task_of(cluster, kind, index)}) == member


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"cluster": 5, "task": {}}', '{"cluster": {}}'])
def test_a_setting_that_tells_no_cluster_is_none(text: str) -> None:
    assert member_of({"TF_CONFIG": text}) is None
    assert member_of({}) is None


def test_a_worker_takes_rank_and_run_from_its_surroundings_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_CONFIG", task_of({"worker": ["a:1", "b:1"]}, "worker", 1))
    monkeypatch.setenv("TRAINVITALS_RUN_ID", "shared")
    found, given = identified(), identified(run_id="mine", rank=0)
    assert (found.run_id, found.rank, found.hello().world_size) == ("shared", 1, 2)
    assert (given.run_id, given.rank) == ("mine", 0)


def test_workers_whose_runs_are_not_one_are_told_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TF_CONFIG", task_of({"worker": ["a:1", "b:1"]}, "worker", 1))
    monkeypatch.delenv("TRAINVITALS_RUN_ID", raising=False)
    identified()
    assert "give all of them the same run_id=" in caplog.text


def identified(run_id: str | None = None, rank: int | None = None) -> Any:  # noqa: ANN401
    """Return the identity of a reporter with these options."""
    return identify(
        None, project="p", name=None, run_id=run_id, token=None, tags=(), config=None, group=None, rank=rank
    )
