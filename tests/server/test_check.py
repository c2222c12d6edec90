"""`trainvitals check`: logs as people have them, good and bad, and what the exit code says."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from traces import gradual, learning, sudden
from trainvitals.wire import FloatArray
from trainvitals_server.cli import main
from trainvitals_server.logfile import UnreadableLog, read_log


def write_csv(path: Path, loss: Sequence[float] | FloatArray, steps: Sequence[int] | None = None) -> Path:
    numbers = steps if steps is not None else range(len(loss))
    rows = "".join(f"{step},{value!r}\n" for step, value in zip(numbers, map(float, loss), strict=True))
    path.write_text("step,loss\n" + rows)
    return path


def check(*paths: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    code = main(["check", "--json", *map(str, paths)])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_healthy_log_ends_with_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, (line,) = check(write_csv(tmp_path / "a.csv", learning(300)), capsys=capsys)
    assert (code, line["incidents"], line["rows"]) == (0, [], 300)


def test_an_incident_ends_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, (line,) = check(write_csv(tmp_path / "a.csv", gradual().columns["loss"].values), capsys=capsys)
    (incident,) = line["incidents"]
    assert (code, incident["kind"], incident["severity"]) == (1, "gradual_divergence", "critical")
    assert incident["nonfinite_step"] > incident["detected_step"]


def test_what_could_not_be_looked_for_is_said_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, (line,) = check(write_csv(tmp_path / "a.csv", learning(50)), capsys=capsys)
    assert "gradual_divergence" in line["ran"]
    assert {"kind": "exploding_gradient", "reason": "no series grad_norm"} in line["skipped"]


def test_the_human_report_says_verdict_and_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "a.csv", sudden().columns["loss"].values)
    assert main(["check", str(path)]) == 1
    text = capsys.readouterr().out
    assert "became non-finite out of the blue at step 200" in text
    assert "next: " in text


def test_a_file_that_is_not_there_ends_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "no.csv")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_one_bad_file_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_csv(tmp_path / "good.csv", learning(50))
    code, lines = check(tmp_path / "no.csv", good, capsys=capsys)
    assert (code, [bool(line.get("error")) for line in lines]) == (2, [True, False])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "it is empty"),
        ("step,loss\n", "it has no rows"),
        ("step,loss\n0,1\n1,abc\n", ":3, column 'loss': 'abc' is no number"),
        ("step,loss\nx,1\n", ":2, column 'step': 'x' is no number"),
        ("step,loss\n0,1,2\n", ":2: 3 cells under 2 column names"),
        ("step,colour\n0,1\n", "no column that can be judged"),
        ("step,loss\n1e300,1\n", "is no step"),
    ],
)
def test_a_bad_file_is_told_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(UnreadableLog) as caught:
        read_log(path)
    assert place in str(caught.value)


@pytest.mark.parametrize("content", [b"\x00\x01\x02\xff\xfe", b"\x1f\x8b broken"])
def test_a_binary_file_is_told_not_raised(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.csv.gz"
    path.write_bytes(content)
    assert main(["check", str(path)]) == 2


def test_a_gzipped_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"step,loss\n0,1.5\n1,nan\n2,-inf\n"))
    series = read_log(path).branches[0].columns["loss"]
    assert [repr(value) for value in series.values.tolist()] == ["1.5", "nan", "-inf"]


def test_an_empty_cell_is_missing_and_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step,loss,val_loss\n0,1,\n1,,2\n2,NaN,None\n")
    columns = read_log(path).branches[0].columns
    assert columns["loss"].present.tolist() == [True, False, True]
    assert columns["val_loss"].present.tolist() == [False, True, False]


def test_json_lines_with_other_names_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    lines = [{"global_step": step, "train_loss": 1.0, "lr": 0.1, "text": "x"} for step in range(30)]
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"global_step": 30, "train_loss": NaN}\n{"glo')
    code, (line,) = check(path, capsys=capsys)
    assert (code, line["rows"], line["incidents"][0]["kind"]) == (1, 31, "sudden_nan")


def test_a_broken_line_of_json_is_told_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 0, "loss": 1}\n{nonsense\n{"step": 1, "loss": 1}\n')
    with pytest.raises(UnreadableLog, match=r"a\.jsonl:2: no JSON"):
        read_log(path)


def test_steps_that_fall_back_are_another_branch(tmp_path: Path) -> None:
    log = read_log(write_csv(tmp_path / "a.csv", [1, 2, 3, 4], [10, 11, 5, 6]))
    assert [branch.steps.tolist() for branch in log.branches] == [[10, 11], [5, 6]]
    assert "fall back 1 time" in log.notes[0]


def test_a_step_that_comes_twice_counts_as_its_later_row(tmp_path: Path) -> None:
    log = read_log(write_csv(tmp_path / "a.csv", [1, 2, 3], [0, 1, 1]))
    assert log.branches[0].columns["loss"].values.tolist() == [1, 3]


def test_a_folder_is_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    write_csv(tmp_path / "in" / "a.csv", learning(20))
    write_csv(tmp_path / "b.csv", learning(20))
    (tmp_path / "notes.txt").write_text("no log")
    _, lines = check(tmp_path, capsys=capsys)
    assert [Path(str(line["file"])).name for line in lines] == ["b.csv", "a.csv"]
