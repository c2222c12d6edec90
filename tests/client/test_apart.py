"""A reporter that goes to another process: spawned, and with data from forked ones."""

from __future__ import annotations

import json
import multiprocessing
import urllib.request
from pathlib import Path

import keras
import numpy as np
import pytest

import apart
from server_process import running_server
from training import batch, by_hand, small_model
from trainvitals import HealthReporter

pytestmark = pytest.mark.tensorflow


def test_a_spawned_training_fed_by_forked_processes_is_one_whole_run(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with running_server(tmp_path / "data") as server:
        reporter = HealthReporter(server.url, spool_dir=tmp_path / "spool", console=False)
        ours, theirs = context.Pipe()
        process = context.Process(target=apart.train, args=(reporter, theirs))
        process.start()
        assert ours.poll(apart.TIMEOUT_S)
        run_id, has_all = ours.recv()
        process.join(apart.TIMEOUT_S)
        with urllib.request.urlopen(f"{server.url}/api/v1/runs") as answer:
            runs = json.load(answer)["runs"]
        with urllib.request.urlopen(f"{server.url}/api/v1/runs/{run_id}/export.jsonl") as answer:
            rows = [json.loads(line) for line in answer]
    assert has_all
    assert process.exitcode == 0
    assert [(run["run_id"], run["state"]) for run in runs] == [(run_id, "finished")]
    assert run_id != reporter.run_id, "a copy is a run of its own"
    data = batch(apart.SIZE * apart.STEPS)
    oracle = by_hand(small_model(), keras.optimizers.SGD(0.02), *data, apart.SIZE, 1)
    assert [row["step"] for row in rows] == list(range(apart.STEPS))
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose([row[name] for row in rows], [one[name] for one in oracle], rtol=1e-5)
