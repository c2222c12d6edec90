"""Two replicas with the Keras of this environment, against one tape on one device."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from compat.frame import SIZE, STEPS


def test_two_replicas_are_one_row_a_batch_and_keep_their_weights() -> None:
    command = [sys.executable, "-m", "compat.replicas"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for policy, rounding in (("float32", 1e-5), ("mixed_float16", 1e-2)):
        told = found[policy]
        assert told["steps"] == list(range(STEPS))
        assert told["sizes"] == ([SIZE] * 6 + [4]) * 2
        assert len(told["scales"]) == (STEPS if policy == "mixed_float16" else 0)
        assert told["same"]
        assert told["drifts"] == any("each replica trains by itself" in text for text in told["messages"])
        # Keras 3.3 does not divide the loss by the replicas; both numbers then are those of their sum.
        replicas = round(told["first"][0] / found["oracle"][0])
        assert replicas in (1, 2)
        loss, norm = (number * replicas for number in found["oracle"])
        assert told["first"][0] == pytest.approx(loss, rel=rounding)
        if policy == "float32":  # that sum, scaled, leaves the range of float16 in the first step
            assert told["first"][1] == pytest.approx(norm, rel=rounding)
