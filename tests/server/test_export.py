"""Exports in pieces that stay small, however wide the rows are."""

from __future__ import annotations

import csv
import io

import numpy as np

from recorded import Recorder, open_database
from trainvitals_server import export
from trainvitals_server.store.export import LAYER_ROWS, ExportPlan, plan_export

LAYERS, ROWS, TAIL_ROWS = 200, 4096, 1000


def record_wide(recorder: Recorder) -> list[float]:
    """Record rows of many layers, most of them compacted; return their cells."""
    recorder.layout(1, [f"layer {number}" for number in range(LAYERS)])
    cells: list[float] = np.random.default_rng(1).normal(size=LAYERS * (ROWS + TAIL_ROWS)).tolist()
    for first in range(0, ROWS + TAIL_ROWS, 100):
        steps = range(first, min(first + 100, ROWS + TAIL_ROWS))
        part = cells[LAYERS * steps.start : LAYERS * steps.stop]
        recorder.steps(steps, {}, {"layer_grad_norm": part}, layout_id=1)
    while recorder.compact(up_to_seq=41):
        pass
    return cells


def test_rows_of_many_layers_are_read_and_spelled_in_small_portions() -> None:
    with open_database() as database:
        cells = record_wide(Recorder(database, run_id="wide"))
        plan: ExportPlan = database.read(lambda c: plan_export(c, "wide", ["layer_grad_norm"]))
        tables = list(export.tables(database, plan))
        portions = list(export.write_csv(plan, iter(tables)))
        lines = list(export.write_jsonl(plan, iter(tables)))
    assert max(len(table.steps) for table in tables) <= LAYER_ROWS
    most = max(portion.count(b"\n") for portion in portions) * (LAYERS + 1)
    assert export.CELLS_AT_ONCE // 2 < most <= export.CELLS_AT_ONCE
    assert max(line.count(b"\n") for line in lines) * (LAYERS + 1) <= export.CELLS_AT_ONCE
    rows = list(csv.reader(io.StringIO(b"".join(portions).decode())))[1:]
    assert [int(row[0]) for row in rows] == list(range(ROWS + TAIL_ROWS))
    assert [float(cell) for row in rows for cell in row[2:]] == cells
