"""`trainvitals check`: logs as people have them, good and bad, and what the exit code says."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from traces import gradual, learning, sudden
from trainvitals.wire import FloatArray
from trainvitals_server.cli import main
from trainvitals_server.logfile import read_log
from trainvitals_server.progress import Progress
from trainvitals_server.readers import UnreadableLog


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
    assert line["skipped"]["exploding_gradient"] == "no series grad_norm or layer_grad_norm"


def test_the_human_report_says_verdict_and_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "a.csv", sudden().columns["loss"].values)
    assert main(["check", str(path)]) == 1
    text = capsys.readouterr().out
    assert "!! sudden_nan: " in text
    assert "step 200" in text
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
    with pytest.raises(UnreadableLog, match=r"a\.jsonl:2:2: no JSON"):
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
    (tmp_path / "config.json").write_text("{}")
    _, lines = check(tmp_path, capsys=capsys)
    assert [Path(str(line["file"])).name for line in lines] == ["b.csv", "a.csv"]


def command(*words: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `trainvitals check` in a process of its own, without rich, as with the base install."""
    code = "import sys; sys.modules['rich'] = None; from trainvitals_server.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, "check", *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1", **(environ or {})},
        timeout=60,
    )


def test_a_clean_log_has_the_fields_of_the_interface_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, (line,) = check(write_csv(tmp_path / "a.csv", learning(50)), capsys=capsys)
    assert list(line) == ["file", "rows", "incidents", "ran", "skipped"]


def test_what_was_odd_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, (line,) = check(write_csv(tmp_path / "a.csv", learning(4), [0, 1, 1, 2]), capsys=capsys)
    assert line["notes"] == ["1 step came twice: the later row counts"]


def test_tables_in_a_folder_that_are_no_logs_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "labels.csv").write_text("name,label\na,good\n")
    assert main(["check", str(tmp_path / "labels.csv")]) == 2
    write_csv(tmp_path / "a.csv", learning(20))
    capsys.readouterr()
    assert main(["check", str(tmp_path)]) == 0
    assert "left out" in capsys.readouterr().err
    (tmp_path / "a.csv").unlink()
    assert main(["check", str(tmp_path)]) == 2  # nothing was judged, so nothing is healthy


def test_a_folder_without_logs_ends_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert "no log in this folder" in capsys.readouterr().err


def test_the_report_draws_the_loss_and_marks_the_onset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", str(write_csv(tmp_path / "a.csv", gradual().columns["loss"].values))])
    text = capsys.readouterr().out
    assert "█" in text
    assert "^" in text
    assert "loss, log scale, steps 0 to 1999" in text


def test_without_rich_the_same_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "a.csv", sudden().columns["loss"].values)
    main(["check", str(path)])
    done = command(str(path))
    assert done.returncode == 1
    assert done.stdout == capsys.readouterr().out


def test_a_terminal_that_knows_ascii_only_gets_a_chart_too(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "ä.csv", gradual().columns["loss"].values)
    done = command(str(path), environ={"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (1, "")
    assert "##" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.parametrize("files", [1, 60])
def test_a_reader_that_goes_away_makes_no_traceback(tmp_path: Path, files: int) -> None:
    for number in range(files):
        write_csv(tmp_path / f"{number}.csv", learning(20))
    words = [sys.executable, "-m", "trainvitals_server.cli", "check", "--json", str(tmp_path)]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, bufsize=0, env=environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 2


def test_a_file_name_that_is_no_text_is_no_trouble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / os.fsdecode(b"a\xff\x1b.csv")
    code, (line,) = check(write_csv(path, sudden().columns["loss"].values), capsys=capsys)
    assert code == 1
    assert line["file"].endswith(r"a\udcff\x1b.csv")
    assert main(["check", str(path)]) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_on_a_terminal_once_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals_server.progress.PATIENCE_S", -1.0)
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        progress = Progress(stream, 200)
        progress.advance(50)
        progress.clear()
    assert " 25%" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert pipe.getvalue() == ""


def test_progress_counts_the_bytes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"step,loss\n0,1.5\n"))
    counted: list[int] = []
    read_log(path, counted.append)
    assert sum(counted) == path.stat().st_size
