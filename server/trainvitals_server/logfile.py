"""Logfile: reads the columns of a training log, CSV or JSON lines, also gzipped. Judges nothing.

An empty cell is missing; NaN and the infinities are values. Steps that fall back begin a new branch: a
restart, or another excerpt. Columns with names we do not know are left out.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np

from trainvitals_server.batch import Batch, Series
from trainvitals_server.detect.needs import coverage

STEP_NAMES = ("step", "global_step", "iteration", "iter", "_step")
ALIASES = {
    "train_loss": "loss", "training_loss": "loss", "train/loss": "loss", "lm loss": "loss",
    "gradient_norm": "grad_norm", "train/grad_norm": "grad_norm", "grad-norm": "grad_norm",
    "lr": "learning_rate", "train/learning_rate": "learning_rate", "scale": "loss_scale",
    "eval_loss": "val_loss", "validation_loss": "val_loss", "eval/loss": "val_loss",
    "skipped_iterations": "skipped",
}  # fmt: skip
KNOWN = frozenset({
    "loss", "grad_norm", "grad_nonfinite", "loss_scale", "learning_rate", "skipped", "weight_nonfinite",
    "input_nonfinite", "label_nonfinite",
})  # fmt: skip
MISSING = frozenset({"", "null", "none", "na", "n/a", "-"})


class UnreadableLog(ValueError):
    """A log that cannot be read; says where and why."""

    def __init__(self, path: Path, reason: str, line: int | None = None, column: str | None = None) -> None:
        super().__init__(path, reason, line, column)
        self.path, self.reason, self.line, self.column = path, reason, line, column

    def __str__(self) -> str:
        """Return one line for a person."""
        place = f":{self.line}" if self.line is not None else ""
        where = f", column {self.column!r}" if self.column else ""
        return f"{self.path}{place}{where}: {self.reason}"


@dataclass(slots=True)
class Log:
    """The branches of one log (more than one where steps fall back), and what was odd about it."""

    path: Path
    branches: list[Batch]
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows there are in all."""
        return sum(len(branch) for branch in self.branches)

    @property
    def series(self) -> set[str]:
        """The series that hold at least one value."""
        return {
            name
            for branch in self.branches
            for name, series in branch.columns.items()
            if series.present.any()
        }


def read_log(path: Path) -> Log:
    """Read one log.

    Raises:
        UnreadableLog: if it is no log, or a cell of a known column is no number.
    """
    try:
        with _open(path) as stream:
            rows = _json_rows(path, stream) if ".jsonl" in path.suffixes else _csv_rows(path, stream)
            return _assemble(path, rows)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error) or "cannot be read"
        raise UnreadableLog(path, reason) from error


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.GzipFile(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


Cell = tuple[int, Mapping[str, object]]  # a line number and its cells


def _csv_rows(path: Path, stream: TextIO) -> Iterator[Cell]:
    reader = csv.reader(stream)
    header = next(reader, None)
    if not header:
        raise UnreadableLog(path, "it is empty")
    names = [name.strip() for name in header]
    for cells in reader:
        if not cells:
            continue
        if len(cells) > len(names):
            reason = f"{len(cells)} cells under {len(names)} column names"
            raise UnreadableLog(path, reason, reader.line_num)
        yield reader.line_num, dict(zip(names, cells, strict=False))


def _json_rows(path: Path, stream: TextIO) -> Iterator[Cell]:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            if not line.endswith("\n"):
                return  # the last line of a log that is being written
            raise UnreadableLog(path, f"no JSON: {error}", number) from error
        if not isinstance(item, dict):
            raise UnreadableLog(path, f"a {type(item).__name__} where an object was expected", number)
        yield number, item


def _assemble(path: Path, rows: Iterable[Cell]) -> Log:
    branches: list[_Columns] = [_Columns()]
    last: int | None = None
    repeated = restarts = 0
    for number, cells in rows:
        step, values = _row(path, number, cells, last)
        if last is not None and step == last:
            repeated += 1
        elif last is not None and step < last:
            restarts += 1
            branches.append(_Columns())
        branches[-1].add(step, values, replaces=last == step)
        last = step
    notes = [f"{repeated} step(s) came twice: the later row counts"] if repeated else []
    if restarts:
        notes.append(f"the steps fall back {restarts} time(s): each branch was judged by itself")
    log = Log(path, [branch.batch() for branch in branches if branch.steps], notes)
    if not log.rows:
        raise UnreadableLog(path, "it has no rows")
    if not coverage(log.series)[0]:
        raise UnreadableLog(
            path, "no column that can be judged holds a value: loss, grad_norm, loss_scale, ..."
        )
    return log


def _row(
    path: Path, line: int, cells: Mapping[str, object], last: int | None
) -> tuple[int, dict[str, float]]:
    step: int | None = None
    values: dict[str, float] = {}
    for name, cell in cells.items():
        key = name.lower() if isinstance(name, str) else ""
        target = ALIASES.get(key, key)
        if key not in STEP_NAMES and target not in KNOWN and not target.startswith("val_"):
            continue
        number = _number(path, line, name, cell)
        if number is None:
            continue
        if key not in STEP_NAMES:
            values.setdefault(target, number)
        elif step is None:
            if not -(2**53) < number < 2**53:
                raise UnreadableLog(path, f"{cell!r} is no step", line, name)
            step = int(number)
    return (step if step is not None else 0 if last is None else last + 1), values


def _number(path: Path, line: int, name: str, cell: object) -> float | None:
    if cell is None or (isinstance(cell, str) and cell.strip().lower() in MISSING):
        return None
    if isinstance(cell, str | int | float):
        try:
            return float(cell)
        except (ValueError, OverflowError):
            pass
    raise UnreadableLog(path, f"{cell!r} is no number", line, name)


@dataclass(slots=True)
class _Columns:
    steps: list[int] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)

    def add(self, step: int, values: dict[str, float], *, replaces: bool) -> None:
        if replaces and self.steps:
            self.rows[-1] |= values
        else:
            self.steps.append(step)
            self.rows.append(values)

    def batch(self) -> Batch:
        names = dict.fromkeys(name for row in self.rows for name in row)
        columns = {}
        for name in names:
            present = np.array([name in row for row in self.rows], dtype=bool)
            values = np.array([row.get(name, 0.0) for row in self.rows], dtype=np.float64)
            columns[name] = Series(values, present)
        return Batch(np.array(self.steps, dtype=np.int64), columns)
