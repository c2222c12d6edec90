"""Logs as trainers write them: names, order, restarts, halves; and anything at all never raises."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainvitals_server.check import judge
from trainvitals_server.export import Write, write_csv, write_jsonl
from trainvitals_server.log_branches import split
from trainvitals_server.logfile import Log, read_log
from trainvitals_server.readers import UnreadableLog
from trainvitals_server.store.export import ExportPlan, Table

EVENTS = Path(__file__).parents[1] / "fixtures/events"
NAMES = ("a.csv", "a.csv.gz", "a.jsonl", "a.json", "a.tsv", "events.out.tfevents.1", "a")


def log_of(folder: Path, text: str | bytes, name: str = "a.csv") -> Log:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_log(path)


def steps_of(log: Log) -> list[list[int]]:
    return [branch.steps.tolist() for branch in log.branches]


def loss_of(log: Log) -> list[float]:
    return [value for branch in log.branches for value in branch.columns["loss"].values.tolist()]


def csv_of(steps: Sequence[int]) -> str:
    return "step,loss\n" + "".join(f"{step},{step / 10}\n" for step in steps)


def trainer_state(*history: dict[str, Any]) -> str:
    return json.dumps({"best_metric": None, "log_history": history}, indent=1)


@pytest.mark.parametrize(
    ("heading", "series"),
    [
        ("global_step,train/loss,train/grad_norm", {"loss", "grad_norm"}),
        ("iteration,lm loss,grad-norm,loss scale", {"loss", "grad_norm", "loss_scale"}),
        ("_step,Loss/train,val/loss,lr", {"loss", "val_loss", "learning_rate"}),
        ("trainer/global_step,train_loss_step,eval/loss", {"loss", "val_loss"}),
        ("step;training_loss;epoch", {"loss"}),
        ("step\tloss\tskipped", {"loss", "skipped"}),
    ],
)  # fmt: skip
def test_names_of_other_trainers_are_known(tmp_path: Path, heading: str, series: set[str]) -> None:
    delimiter = next(mark for mark in "\t;," if mark in heading)
    row = delimiter.join(["0"] + ["1.5"] * heading.count(delimiter))
    assert log_of(tmp_path, f"{heading}\n{row}\n").series == series


def test_the_epochs_of_a_csv_logger_are_its_steps(tmp_path: Path) -> None:
    log = read_log(EVENTS / "keras/log.csv")
    assert steps_of(log) == [[0, 1, 2, 3, 4]]
    assert log.notes == ["no column of steps: the epochs count as steps"]


def test_an_epoch_that_stays_for_many_rows_is_no_step(tmp_path: Path) -> None:
    log = log_of(tmp_path, "epoch,loss\n0,3\n0,2\n1,1\n")
    assert (steps_of(log), log.notes) == ([[0, 1, 2]], ["no column of steps: the rows are counted from 0"])


def test_a_trainer_s_state_is_read_without_its_summary(tmp_path: Path) -> None:
    text = trainer_state(
        {"loss": 2.0, "grad_norm": 1.0, "learning_rate": 0.1, "epoch": 0.5, "step": 10},
        {"eval_loss": 2.1, "eval_runtime": 3.0, "epoch": 1.0, "step": 20},
        {"loss": 1.5, "grad_norm": float("nan"), "epoch": 1.0, "step": 20},
        {"train_loss": 1.75, "train_runtime": 99.0, "epoch": 1.0, "step": 21},
    )
    log = log_of(tmp_path, text, "trainer_state.json")
    assert (steps_of(log), loss_of(log)) == ([[10, 20]], [2.0, 1.5])
    assert log.branches[0].columns["val_loss"].present.tolist() == [False, True]
    assert np.isnan(log.branches[0].columns["grad_norm"].values[1])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"log_history": [\n {"loss": 1,}]}', ":2:"),
        (trainer_state({"step": 1}, {"step": 2, "loss": "x"}), ", entry 1, column 'loss': 'x' is no number"),
        ('{"log_history": [1]}', ", entry 0: a int where an object was expected"),
        ('{"epochs": 3}', "no log_history"),
        ("[" * 100_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_a_broken_document_is_told_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(UnreadableLog) as caught:
        log_of(tmp_path, text, "trainer_state.json")
    assert place in str(caught.value)


@pytest.mark.parametrize(("write", "name"), [(write_csv, "a.csv"), (write_jsonl, "a.jsonl")])
def test_our_own_export_is_read_as_it_was(write: Write, name: str, tmp_path: Path) -> None:
    columns = (("loss", None), ("layer_grad_norm", "a"), ("layer_grad_norm", "b"))
    cells = [
        (np.array([1.0, np.inf]), np.array([True, True])),
        (np.array([np.nan, 3.0]), np.array([True, True])),
        (np.array([0.0, 4.0]), np.array([False, True])),
    ]
    table = Table(np.array([7, 8]), cells)
    log = log_of(tmp_path, b"".join(write(ExportPlan("run", 0, columns, ()), iter([table]))), name)
    layers = log.branches[0].layer_columns["layer_grad_norm"]
    assert (steps_of(log), loss_of(log)) == ([[7, 8]], [1.0, float("inf")])
    assert [layer.name for layer in log.layers] == ["a", "b"]
    assert layers.present.tolist() == [[True, False], [True, True]]
    np.testing.assert_array_equal(layers.values, [[np.nan, 0.0], [3.0, 4.0]])
    assert [incident.severity for incident in judge(log)] == ["critical"]


def test_our_own_series_keep_their_names(tmp_path: Path) -> None:
    log = log_of(tmp_path, "step,loss,step_time_s,accuracy_running,layer_update_ratio/a\n0,1,0.1,NaN,0.5\n")
    assert log.series == {"loss", "step_time_s", "accuracy_running", "layer_update_ratio"}


def test_text_where_another_metric_might_stand_is_no_trouble(tmp_path: Path) -> None:
    assert log_of(tmp_path, "step,loss,val_split,is_running\n0,1,dev,yes\n").series == {"loss"}


def test_objects_in_a_line_are_read_too(tmp_path: Path) -> None:
    log = log_of(tmp_path, '{"step": 3, "train": {"loss": 1.5}}\n{"config": {"lr": "3e-4"}}\n', "a.jsonl")
    assert loss_of(log)[:1] == [1.5]


def test_the_column_with_more_values_counts(tmp_path: Path) -> None:
    log = log_of(tmp_path, "step,train_loss,loss\n0,9,\n1,,1\n2,,2\n")
    assert log.branches[0].columns["loss"].values[1:].tolist() == [1.0, 2.0]
    assert log.notes == ["left out, as other columns hold more of the same: 'train_loss'"]


def test_a_restart_begins_a_branch_and_says_where(tmp_path: Path) -> None:
    log = log_of(tmp_path, csv_of([*range(90, 100), *range(95, 110)]))
    assert steps_of(log) == [list(range(90, 100)), list(range(95, 110))]
    assert log.notes == [
        "the steps fall back 1 time (first from 99 to 95, line 12): each branch was judged by itself"
    ]


def test_a_restart_of_a_log_with_one_series_a_line_is_one_restart(tmp_path: Path) -> None:
    steps = [*range(90, 100), *range(95, 110)]
    lines = [{"step": step, name: 1.0} for step in steps for name in ("loss", "grad_norm")]
    log = log_of(tmp_path, "\n".join(map(json.dumps, lines)), "a.jsonl")
    assert steps_of(log) == [list(range(90, 100)), list(range(95, 110))]


def test_what_comes_once_an_epoch_is_not_mixed_with_what_comes_every_batch(tmp_path: Path) -> None:
    lines = [{"step": step, "batch_loss": 1.0} for step in range(10)]
    lines += [{"step": epoch, "epoch_learning_rate": 0.1} for epoch in range(2)]
    assert log_of(tmp_path, "\n".join(map(json.dumps, lines)), "a.jsonl").series == {"loss"}


def test_a_row_that_came_late_is_put_in_order(tmp_path: Path) -> None:
    log = log_of(tmp_path, csv_of([0, 1, 3, 2, 4, 5, 6]))
    assert (steps_of(log), loss_of(log)[2]) == ([[0, 1, 2, 3, 4, 5, 6]], 0.2)
    assert log.notes == ["the rows are not in the order of their steps: they were sorted"]


@pytest.mark.parametrize("steps", [list(range(20))[::-1], np.random.default_rng(0).permutation(50).tolist()])
def test_a_file_in_no_order_is_sorted(tmp_path: Path, steps: list[int]) -> None:
    log = log_of(tmp_path, csv_of(steps))
    assert loss_of(log) == [step / 10 for step in range(len(steps))]


def test_one_series_after_the_other_is_one_branch(tmp_path: Path) -> None:
    lines = [{"step": step, name: 1.0} for name in ("loss", "grad_norm") for step in range(30)]
    log = log_of(tmp_path, "\n".join(map(json.dumps, lines)), "a.jsonl")
    assert steps_of(log) == [list(range(30))]
    assert log.branches[0].columns["grad_norm"].present.all()


def test_a_validation_that_is_written_late_joins_its_step(tmp_path: Path) -> None:
    lines = [
        {"step": 9, "loss": 1},
        {"step": 10, "loss": 1},
        {"step": 9, "val_loss": 2},
        {"step": 11, "loss": 1},
    ]
    log = log_of(tmp_path, "\n".join(map(json.dumps, lines)), "a.jsonl")
    assert steps_of(log) == [[9, 10, 11]]
    assert log.branches[0].columns["val_loss"].present.tolist() == [True, False, False]


def test_a_last_line_that_is_half_written_is_left_out(tmp_path: Path) -> None:
    log = log_of(tmp_path, "step,loss\n0,1.5\n1,1.2e")
    assert loss_of(log) == [1.5]
    assert log.notes == ["it ends in the middle ('1.2e' is no number, line 3): what came before was judged"]


def test_compressed_data_that_ends_early_is_judged_up_to_there(tmp_path: Path) -> None:
    whole = gzip.compress(
        csv_of(np.random.default_rng(0).integers(0, 10**6, 5000).cumsum().tolist()).encode()
    )
    log = log_of(tmp_path, whole[: len(whole) // 2], "a.csv.gz")
    assert 1000 < log.rows < 4000
    assert "the compressed data ends too early" in log.notes[0]


def test_compressed_data_is_known_by_its_bytes(tmp_path: Path) -> None:
    assert log_of(tmp_path, gzip.compress(csv_of([0, 1]).encode()), "a.csv").rows == 2


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_text_of_other_encodings_is_read(tmp_path: Path, encoding: str) -> None:
    assert log_of(tmp_path, "step,loss,who\n0,1.5,Jürgen\n".encode(encoding)).rows == 1


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("0,1.5\n1,1.4\n", ":1: no names of columns in the first line"),
        ("step,loss\n0,1_000\n", ":2, column 'loss': '1_000' is no number"),
        ("step,loss\n0,1\n0.5,1\n", ":3, column 'step': '0.5' is no step"),
        ("step,loss\n0,\x1b[2J\n", r":2, column 'loss': '\x1b[2J' is no number"),
        ("step,loss\n0," + "9" * 200_000 + "\n", ":2: field larger than"),
        ("step,loss\n0," + "x" * 100 + "\n", "xxx... is no number"),
    ],
)
def test_a_bad_cell_is_told_with_line_and_column(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(UnreadableLog) as caught:
        log_of(tmp_path, text)
    assert place in str(caught.value)


@settings(max_examples=200)
@given(st.lists(st.integers(-5, 40), min_size=1, max_size=60))
def test_however_steps_jump_every_row_is_in_one_branch_in_order(steps: list[int]) -> None:
    rows = np.arange(len(steps))
    parts = split({"loss": (rows, np.array(steps))})
    assert parts.starts[0] == 0
    assert list(parts.starts) == sorted(set(parts.starts))
    if not parts.is_disordered:
        cuts = np.split(np.array(steps), parts.starts[1:])
        assert all((np.diff(cut) >= 0).all() for cut in cuts)


@pytest.mark.parametrize("name", NAMES)
@given(
    data=st.binary(max_size=300)
    | st.text(alphabet='step,los{}":[]0123.-eNa\n\t ', max_size=200).map(str.encode)
)
@example(data=b"\xff\xfes\x00")
@example(data=b"\x1f\x8b\x08\x00")
@example(data=b"step,loss\n0,\xff\n")
@example(data=b'step,loss\n"0')
def test_no_bytes_raise_anything_but_that_they_are_no_log(
    name: str, data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"fuzz-{name}"
    path.mkdir(exist_ok=True)
    told = str(path)
    try:
        judge(log_of(path, data, name))
    except UnreadableLog as error:
        told = str(error)
    assert told.startswith(str(path))
    assert told.isprintable()


def real_files() -> list[Path]:
    return sorted(path for path in EVENTS.rglob("*") if path.is_file())


@pytest.mark.parametrize("source", real_files(), ids=lambda path: path.parent.name + path.suffix)
@settings(max_examples=40)
@given(data=st.data())
def test_a_real_file_that_was_damaged_is_read_or_told(
    source: Path, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(source.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3)):
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.mkdir(exist_ok=True)
    with suppress(UnreadableLog):
        judge(log_of(path, bytes(content[: data.draw(st.integers(0, len(content)))]), source.name))
