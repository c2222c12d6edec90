"""Whatever the source, each kind is looked for or passed over with a reason; nothing else is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from layered import FAILING_LAYERS
from stuck import STUCK
from traces import FAILING
from trainvitals_server.batch import Batch, Series
from trainvitals_server.detect.needs import HALF, LIVE, NEEDS, Need, coverage
from trainvitals_server.finding import KINDS
from trainvitals_server.fold import scan
from trainvitals_server.logfile import read_log

CLIENT = (
    "loss", "grad_norm", "grad_nonfinite", "loss_scale", "skipped", "learning_rate", "optimizer_step",
    "step_time_s", "batch_size", "accuracy_running", "layer_grad_norm", "layer_grad_nonfinite",
    "layer_weight_norm", "layer_update_ratio", "weight_nonfinite", "val_loss",
)  # fmt: skip


EXPORTED = [name if "layer" not in name else f"{name}/dense" for name in CLIENT]


def csv_of(columns: Collection[str], rows: int, every: int = 1) -> str:
    steps = range(0, rows * every, every)
    cells = ",".join("0.5" for _ in columns)
    return "\n".join([f"step,{','.join(columns)}", *(f"{step},{cells}" for step in steps)])


def trainer_state(rows: int) -> str:
    history = [
        {"step": 10 * row, "loss": 1.0, "grad_norm": 1.0, "learning_rate": 1e-4} for row in range(1, rows)
    ]
    return json.dumps({"log_history": [*history, {"step": 10 * rows, "eval_loss": 1.0}]})


SOURCES: dict[str, tuple[str, str]] = {
    "a loss and nothing else": ("log.csv", csv_of(["loss"], 400)),
    "rows a hundred steps apart": ("log.csv", csv_of(["loss", "grad_norm"], 50, 100)),
    "Keras CSVLogger": ("keras.csv", "epoch,accuracy,loss,val_loss\n0,0.5,1,1.1\n1,0.6,0.9,1\n"),
    "the state of a trainer": ("trainer_state.json", trainer_state(40)),
    "all that a reporter sends": ("export.csv", csv_of(EXPORTED, 300)),
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_each_kind_is_looked_for_or_passed_over_with_a_reason(source: str, tmp_path: Path) -> None:
    name, text = SOURCES[source]
    (tmp_path / name).write_text(text)
    ran, skipped = coverage(read_log(tmp_path / name).counts)
    assert sorted([*ran, *(item.kind for item in skipped)]) == sorted(KINDS)
    assert all(item.reason for item in skipped)


def test_a_reporter_of_a_half_precision_run_leaves_nothing_out() -> None:
    ran, skipped = coverage(CLIENT, (HALF, LIVE))
    assert (sorted(ran), skipped) == (sorted(KINDS), [])


def test_what_no_series_can_say_is_passed_over_in_a_file() -> None:
    reasons = {item.kind: item.reason for item in coverage(CLIENT)[1]}
    assert reasons == {
        "activation_overflow": "no float16 dtype policy",
        "run_stalled": "no connection of a reporter",
        "run_crashed": "no connection of a reporter",
    }


def test_too_few_rows_are_told_with_their_number() -> None:
    ran, skipped = coverage({"loss": 40, "val_loss": 3})
    reasons = {item.kind: item.reason for item in skipped}
    assert "silent_constant" in ran
    assert reasons["plateau"] == "40 values of loss, it takes 320"
    assert reasons["overfitting"] == "3 values of val_loss, it takes 7"


MAKERS: dict[str, Callable[[int], Batch]] = {
    **FAILING, **FAILING_LAYERS, **{name: maker for name, (_, maker) in STUCK.items()}
}  # fmt: skip


def kept(batch: Batch, names: Collection[str]) -> Batch:
    def of(columns: Mapping[str, Series]) -> dict[str, Series]:
        return {name: series for name, series in columns.items() if name in names}

    return replace(batch, columns=of(batch.columns), layer_columns=of(batch.layer_columns))


def counts_of(batch: Batch) -> dict[str, int]:
    return {
        name: int(series.present.reshape(len(batch), -1).any(axis=1).sum())
        for name, series in {**batch.columns, **batch.layer_columns}.items()
    }


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_is_found_that_was_not_looked_for(name: str) -> None:
    batch = MAKERS[name](0)
    names = [*batch.columns, *batch.layer_columns]
    found = set()
    for count in range(len(names) + 1):
        for chosen in combinations(names, count):
            part = kept(batch, chosen)
            kinds = {incident.kind for incident in scan([part])}
            assert kinds <= set(coverage(counts_of(part))[0]), chosen
            found |= kinds
    assert found


@pytest.mark.parametrize("need", [need for need in NEEDS if need.rows > 1], ids=lambda need: need.kinds[0])
def test_no_pattern_is_found_in_fewer_rows_than_it_takes(need: Need) -> None:
    for maker in MAKERS.values():
        batch = maker(1)
        for start in (0, len(batch) // 3):
            piece = batch.slice(start, start + need.rows - 1)
            assert not {incident.kind for incident in scan([piece])} & set(need.kinds)


def test_a_log_of_few_rows_is_still_judged_for_failures(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv_of(["loss"], 12))
    assert "gradual_divergence" in coverage(read_log(tmp_path / "a.csv").counts)[0]
