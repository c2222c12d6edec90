"""What `trainvitals check` says of a log: in its own rows, of each of its losses, and in few lines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trainvitals_server.cli import main
from trainvitals_server.finding import KINDS
from trainvitals_server.logfile import read_log

BY_EPOCH = "epoch,accuracy,loss,val_loss\n" + "".join(f"{row},0.1,nan,nan\n" for row in range(4))


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def said(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    main(["check", *options, str(path)])
    return capsys.readouterr().out


def judged(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(said(path, capsys, "--json"))
    return line


def test_what_was_not_looked_for_takes_one_short_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(written(tmp_path / "a.csv", BY_EPOCH), capsys)
    (line,) = [line for line in text.splitlines() if "looked for" in line]
    counts = [int(number) for number in re.findall(r"\d+", line)]
    assert sum(counts) == len(KINDS)
    assert "columns (grad_norm, " in line
    assert "more rows" in line
    assert "a run that reports" in line
    assert len(line) < 200


def test_verbose_names_every_kind_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(written(tmp_path / "a.csv", BY_EPOCH), capsys, "--verbose")
    assert [kind for kind in KINDS if kind not in text] == []
    assert "not looked for (no series step_time_s): slow_steps" in text


def test_a_log_by_epochs_is_told_in_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.csv", BY_EPOCH)
    assert "4 rows, epochs 0 to 3" in said(path, capsys)
    (incident,) = judged(path, capsys)["incidents"]
    assert "not finite from the first epoch on (epoch 0)" in incident["verdict"]
    told = [incident["verdict"], *incident["why"], *(item["text"] for item in incident["evidence"])]
    told += [text for cause in incident["causes"] for text in cause["for"]]
    assert [text for text in told if re.search(r"step \d|first step|batch", text)] == []
    assert incident["causes"][0]["cause"] == "unknown"  # an epoch is many steps


@pytest.mark.parametrize(
    ("text", "unit"),
    [("step,loss\n0,1\n1,1\n", "step"), ("epoch,loss\n0,1\n1,1\n", "epoch"), ("loss\n1\n1\n", "row")],
)
def test_a_log_knows_what_its_rows_are(tmp_path: Path, text: str, unit: str) -> None:
    assert read_log(written(tmp_path / "a.csv", text)).unit == unit


def test_a_log_by_steps_keeps_its_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.csv", BY_EPOCH.replace("epoch", "step"))
    (incident,) = judged(path, capsys)["incidents"]
    assert "not finite from the first step on (step 0)" in incident["verdict"]


LOSSES = [(row, 1 / (1 + row), "nan" if row >= 40 else 2 / (1 + row)) for row in range(60)]


def test_two_losses_without_a_total_are_judged_each_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{step},{one},{other}\n" for step, one, other in LOSSES)
    line = judged(written(tmp_path / "gan.csv", "step,d_loss,loss_2\n" + rows), capsys)
    (incident,) = line["incidents"]
    assert (incident["kind"], incident["onset_step"]) == ("sudden_nan", 40)
    assert incident["verdict"].startswith("`loss_2`: The loss is NaN at step 40")
    assert incident["evidence"][0]["series"] == "loss_2"
    assert line["notes"] == ["no column `loss`: judged each by itself: d_loss, loss_2"]
    assert "sudden_nan" in line["ran"]


def test_parts_of_a_total_are_not_judged_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{step},{one},{one},nan\n" for step, one, _ in LOSSES)
    line = judged(written(tmp_path / "a.csv", "step,loss,out_a_loss,out_b_loss\n" + rows), capsys)
    assert line["incidents"] == []
    assert line["notes"] == ["parts of `loss`, not judged by themselves: out_a_loss, out_b_loss"]
