"""Several replicas of one model: one row of each step of all, against an eager oracle on one device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Answers = dict[str, Any]

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]  # of a busy machine

PROGRAM = Path(__file__).parents[1] / "replicated.py"
ROUNDING = 1e-5  # of float32, in another order of summation
HALF_ROUNDING = 1e-3  # of float16


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Return what two replicas reported of each training: they take a process of their own."""
    path = tmp_path_factory.mktemp("replicas") / "answers.json"
    done = subprocess.run([sys.executable, PROGRAM, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: Answers = json.loads(path.read_text())
    return found


def assert_equals_the_oracle(answer: Answers, rounding: float = ROUNDING, steps: int | None = None) -> None:
    """Compare loss and norms of the first steps with those of the eager training."""
    told, oracle = answer["told"], answer["oracle"][:steps]
    series = {"loss": "loss", "hidden": "layer_grad_norm hidden", "head": "layer_grad_norm head"}
    for name, column in series.items():
        np.testing.assert_allclose(
            told[column][: len(oracle)], [row[name] for row in oracle], rtol=rounding, err_msg=name
        )
    norms = [row.get("grad_norm", row.get("grad")) for row in oracle]
    np.testing.assert_allclose(told["grad_norm"][: len(oracle)], norms, rtol=rounding)


def test_each_batch_is_one_row_with_the_loss_and_the_gradient_of_all_replicas(answers: Answers) -> None:
    told = answers["plain"]["told"]
    assert told["steps"] == list(range(8))
    assert told["batch_size"] == [16, 16, 16, 11] * 2
    assert told["optimizer_step"] == list(range(1, 9))
    assert told["learning_rate"] == pytest.approx([0.01] * 8)
    assert told["grad_nonfinite"] == [0] * 8
    assert_equals_the_oracle(answers["plain"])


def test_weights_and_checkpoints_are_those_of_a_training_without_us(answers: Answers) -> None:
    for name in ("plain", "mixed", "mixed_bfloat16", "float64", "two_optimizers", "eager"):
        assert all(answers[name]["same"]), name
    assert answers["plain"]["untouched"]


def test_keras_itself_does_not_train_several_replicas_of_a_cpu_under_xla(answers: Answers) -> None:
    assert "StatefulPartitionedCall" in answers["xla"]["error"]


def test_an_empty_share_of_the_last_batch_and_an_exception_leave_the_rows_right(answers: Answers) -> None:
    told = answers["one_row"]["told"]
    assert told["steps"] == list(range(8))
    assert told["batch_size"] == [16, 16, 1, 16, 16, 16, 16, 1]
    assert told["lost"] == []
    assert_equals_the_oracle(answers["one_row"])


def test_a_loss_scaler_is_told_step_by_step(answers: Answers) -> None:
    told = answers["mixed"]["told"]
    assert told["loss_scale"] == [1024, 1024, 1024, 2048, 2048, 2048, 1024, 1024]
    assert_equals_the_oracle(answers["mixed"], HALF_ROUNDING)


def test_skipped_is_what_keras_skips_which_asks_the_first_replica_alone(answers: Answers) -> None:
    told = answers["mixed"]["told"]
    assert told["skipped"] == [0, 0, 0, 0, 0, 1, 0, 0]
    assert told["optimizer_step"] == [1, 2, 3, 4, 5, 5, 6, 7]
    assert told["grad_nonfinite"] == [0, 0, 0, 0, 0, 161, 0, 161]
    assert told["label_nonfinite"] == [1, 1]
    assert not answers["mixed"]["is_finite"]  # the second replica's NaN went into the weights


@pytest.mark.parametrize("name", ["two_optimizers", "eager"])
def test_the_first_bad_layer_is_told_where_one_replica_spoils_it(name: str, answers: Answers) -> None:
    told, bad_step = answers[name]["told"], answers[name]["oracle"][2]
    assert told["layer_grad_nonfinite hidden"][:3] == [0, 0, bad_step["hidden_bad"]]
    assert told["layer_grad_nonfinite head"][:3] == [0, 0, 0]
    assert told["layer_grad_nonfinite table"][:3] == [0, 0, 0]
    assert told["input_nonfinite"][0] == told["weight_nonfinite"][0] == 0


@pytest.mark.parametrize("name", ["two_optimizers", "eager"])
def test_a_train_step_with_two_optimizers_and_an_embedding_equals_the_oracle(
    name: str, answers: Answers
) -> None:
    assert_equals_the_oracle(answers[name], steps=3)
    table = answers[name]["told"]["layer_grad_norm table"][:3]
    np.testing.assert_allclose(table, [row["table"] for row in answers[name]["oracle"][:3]], rtol=ROUNDING)


def test_a_fit_within_the_scope_of_the_strategy_is_measured_too(answers: Answers) -> None:
    assert answers["scope"]["told"]["steps"] == [0, 1]
    assert_equals_the_oracle(answers["scope"])


def test_an_exception_in_one_replica_leaves_nothing_behind(answers: Answers) -> None:
    answer = answers["raises"]
    assert answer["hooked"] == []
    np.testing.assert_allclose(answer["losses"], [row["loss"] for row in answer["oracle"]], rtol=ROUNDING)


def test_what_is_not_done_with_replicas_is_said_once(answers: Answers) -> None:
    assert answers["plain"]["told"]["messages"] == [
        "Several replicas train together: a failing step is not run again."
    ]
