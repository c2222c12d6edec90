"""A run in a real database, told frame by frame; and a model of what a reader must find there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import Connection
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from trainvitals.wire import Column, Dtype, Environment, Hello, Layer, Layout, Sequenced, Steps
from trainvitals_server.store.blocks import compact
from trainvitals_server.store.database import Database
from trainvitals_server.store.runs import append_frames, upsert_hello

T = TypeVar("T")
NOW = 1_700_000_000.0
Cell = float | None  # None is missing


@contextmanager
def open_database(folder: Path | None = None) -> Iterator[Database]:
    with TemporaryDirectory() as name:
        database = Database((folder or Path(name)) / "trainvitals.db")
        try:
            yield database
        finally:
            database.close()


def packed(cells: Sequence[Cell], dtype: Dtype = "f8") -> Column:
    values = [0.0 if cell is None else cell for cell in cells]
    return Column.pack(np.array(values), np.array([cell is not None for cell in cells]), dtype)


@dataclass
class Recorder:
    """One session that reports to a database."""

    database: Database
    run_id: str = "run-1"
    session_id: str = "s0"
    ordinal: int = 0
    rank: int = 0
    resume_step: int | None = None
    seq: int = 0
    rows: dict[int, dict[str, Cell]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hello = Hello(
            run_id=self.run_id,
            session_id=self.session_id,
            session_ordinal=self.ordinal,
            rank=self.rank,
            world_size=8,
            resume_step=self.resume_step,
            started_at=NOW,
            environment=Environment(dtype_policy="float32"),
        )
        self.do(lambda connection: upsert_hello(connection, hello, NOW))

    def do(self, job: Callable[[Connection], T]) -> T:
        return self.database.write(job).result(30)

    def send(self, *frames: Sequenced) -> None:
        self.do(lambda c: append_frames(c, self.run_id, self.rank, self.session_id, frames, NOW))
        self.seq = frames[-1].seq

    def layout(self, layout_id: int, names: Sequence[str]) -> None:
        layers = [Layer(name=name, kind="Dense") for name in names]
        self.send(Layout(seq=self.seq + 1, layout_id=layout_id, layers=layers))

    def steps(
        self,
        steps: Sequence[int],
        columns: Mapping[str, Sequence[Cell]],
        layer_columns: Mapping[str, Sequence[Cell]] | None = None,
        layout_id: int = 0,
        dtype: Dtype = "f8",
    ) -> None:
        """Send one frame of rows and remember them as a reader must find them."""
        dense = steps[-1] - steps[0] + 1 == len(steps)
        frame = Steps(
            seq=self.seq + 1,
            first_step=steps[0],
            count=len(steps),
            layout_id=layout_id,
            steps=None if dense else np.array(steps, dtype="<i8").tobytes(),
            times=packed([NOW + step for step in steps]),
            columns={name: packed(cells, dtype) for name, cells in columns.items()},
            layer_columns={name: packed(cells, dtype) for name, cells in (layer_columns or {}).items()},
        )
        self.send(frame)
        for row, step in enumerate(steps):
            told = self.rows.setdefault(step, {})
            told.update({name: cells[row] for name, cells in columns.items()})

    def compact(self, up_to_seq: int | None = None, min_frames: int = 1) -> int:
        seq = self.seq if up_to_seq is None else up_to_seq
        return self.do(
            lambda c: compact(c, self.run_id, self.rank, self.session_id, seq, min_frames=min_frames)
        )


def main_line(recorders: Sequence[Recorder], name: str) -> dict[int, Cell]:
    """Return what a run looks like after every resume: each session cuts what was there and goes on."""
    found: dict[int, Cell] = {}
    for recorder in sorted(recorders, key=lambda recorder: recorder.ordinal):
        if recorder.rows:
            first = min(recorder.rows)
            begin = first if recorder.resume_step is None else min(first, recorder.resume_step)
            found = {step: cell for step, cell in found.items() if step < begin}
        found |= {step: row[name] for step, row in recorder.rows.items() if name in row}
    return dict(sorted(found.items()))
