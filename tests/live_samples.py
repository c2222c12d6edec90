"""Rows, incidents and runs to publish, in one line each, and how to read a column that comes out."""

from __future__ import annotations

import math

import numpy as np

from trainvitals.wire import Layer
from trainvitals_server import codec
from trainvitals_server.batch import Batch, Series
from trainvitals_server.finding import Evidence
from trainvitals_server.incident import Incident
from trainvitals_server.store.summaries import RunSummary

Cell = float | None  # None is missing


def batch(first_step: int, cells: list[Cell], name: str = "loss", layers: tuple[Layer, ...] = ()) -> Batch:
    values = np.array([math.nan if cell is None else cell for cell in cells])
    series = Series(values, np.array([cell is not None for cell in cells]))
    steps = np.arange(first_step, first_step + len(cells), dtype=np.int64)
    return Batch(steps, {name: series}, layers=layers)


def layer_batch(first_step: int, cells: list[list[float]], names: list[str]) -> Batch:
    values = np.array(cells)
    series = Series(values, np.ones(values.shape, dtype=bool))
    steps = np.arange(first_step, first_step + len(cells), dtype=np.int64)
    return Batch(steps, {}, {"layer_grad_norm": series}, tuple(Layer(name=name) for name in names))


def told(column: dict[str, str]) -> list[str]:
    values, present = codec.decode_column(column)
    return [repr(float(value)) if flag else "missing" for value, flag in zip(values, present, strict=True)]


def incident(run_id: str = "run-1") -> Incident:
    evidence = [Evidence(text="loss", value=-math.inf)]
    return Incident(
        id="i1",
        run_id=run_id,
        kind="sudden_nan",
        severity="critical",
        onset_step=1,
        detected_step=1,
        evidence=evidence,
    )


def summary(run_id: str = "run-1") -> RunSummary:
    return RunSummary(
        run_id=run_id, project="p", group=None, name=None, tags=[], notes="", state="running", started_at=1.0,
        last_seen_at=2.0, last_step=3, stop_requested=False, open_incidents=0, worst_incident=None,
    )  # fmt: skip
