"""The loop that the README shows, as it is written there, with a real server."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from observing import batches, tower
from server_process import running_server

pytestmark = pytest.mark.tensorflow
README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_loop_of_the_readme_makes_a_run_with_every_step(tmp_path: Path) -> None:
    (snippet,) = (one for one in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "observe(" in one)
    model = tower()
    names: dict[str, Any] = {
        "tf": tf,
        "model": model,
        "loss_fn": keras.losses.MeanSquaredError(),
        "optimizer": keras.optimizers.Adam(0.01),
        "data": [tuple(map(tf.constant, one)) for one in batches(12)],
    }
    with running_server(tmp_path) as server:
        code = compile(snippet.replace("http://127.0.0.1:8765", server.url), "README.md", "exec")
        exec(code, names)
        names["reporter"]._session.sender.close()
        with urllib.request.urlopen(f"{server.url}/api/v1/runs") as answer:
            (run,) = json.load(answer)["runs"]
        address = f"{server.url}/api/v1/runs/{run['run_id']}/export.jsonl"
        with urllib.request.urlopen(address) as answer:
            rows = [json.loads(line) for line in answer.read().decode().splitlines()]
    assert (run["project"], run["state"], run["last_step"]) == ("gan", "finished", 11)
    assert [row["optimizer_step"] for row in rows] == list(range(1, 13))
    assert all(np.isfinite(row["grad_norm"]) for row in rows)
