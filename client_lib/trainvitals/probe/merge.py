"""Merge: the rows of the parts of a step, each from a ring of its own, become one row a step. On the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainvitals.probe.decode import BlockShape, Decoded, decode, nonfinite_elements
from trainvitals.probe.layers import Groups
from trainvitals.probe.optimizers import optimizer_step_of
from trainvitals.probe.ring import Ring
from trainvitals.probe.row import ROW_HEAD
from trainvitals.probe.types import Optimizer
from trainvitals.rows import Cells
from trainvitals.wire import BoolArray, FloatArray, IntArray

LOSS, BATCH_SIZE = 2, 3  # places in the head of a row, after the step and the step of the loss
SCALE, UPDATES = ROW_HEAD + 1, ROW_HEAD + 3  # and in the head of a block
NEVER = -1.0  # a step that no row has


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one make: those that one traced `observe` writes.

    A row is as `row.py` says, then the loss scaler's step and the metrics.
    """

    number: int  # of the part of the step that it is
    is_main: bool
    optimizer: Optimizer
    blocks: tuple[BlockShape, ...]  # one, or none where no gradient was given
    ring: Ring
    has_loss: bool
    has_batch: bool
    is_after: bool  # the update was made before it
    metrics: tuple[str, ...]


Read = tuple[Table, FloatArray]


def latest_step(read: Sequence[Read]) -> int:
    """Return the last step of these rows."""
    return max(int(rows[-1, 0]) for _, rows in read)


def merged(read: Sequence[Read], groups: Groups, expected: int, loss_part: int) -> list[Decoded]:
    """Return the series in these rows in pieces of rising steps.

    Args:
        read: New rows of each table that has some.
        groups: The layers.
        expected: The step that should come first.
        loss_part: The part whose loss is `loss`.
    """
    read = _of_their_step(sorted(read, key=lambda one: one[0].number))
    steps = np.unique(np.concatenate([rows[:, 0] for _, rows in read]))
    steps = steps[steps >= _first_whole(read, expected)]
    return [_decoded(read, run, groups, loss_part) for run in _runs(read, steps)]


def _first_whole(read: Sequence[Read], expected: int) -> float:
    """Return the first step that no ring has overwritten a part of."""
    full = [rows[0, 0] for table, rows in read if len(rows) >= table.ring.capacity]
    return max([first for first in full if first > expected], default=0.0)


def _runs(read: Sequence[Read], steps: FloatArray) -> Iterator[FloatArray]:
    """Yield neighbouring steps in which the main part has rows of one make: their columns are the same."""
    make = np.full(len(steps), -1)
    for number, (table, rows) in enumerate(read):
        if table.is_main:
            make[np.isin(steps, rows[:, 0])] = number
    yield from np.split(steps, np.flatnonzero(np.diff(make)) + 1)


def _decoded(read: Sequence[Read], steps: FloatArray, groups: Groups, loss_part: int) -> Decoded:
    """Return the series of `steps`, with a block for each table that has some of them."""
    found = [(table, _aligned(rows, steps)) for table, rows in read]
    found = [(table, rows) for table, rows in found if (rows[:, 0] >= 0).any()]
    head = np.full((len(steps), ROW_HEAD), NEVER)
    head[:, 0] = steps
    for table, rows in found:
        if table.has_loss and table.number == loss_part:
            ran = rows[:, 0] >= 0
            head[ran, 1 : LOSS + 1] = rows[ran, 1 : LOSS + 1]
    head[:, BATCH_SIZE] = np.max([rows[:, BATCH_SIZE] for _, rows in found], axis=0)
    parts, blocks = [head], []
    for table, rows in found:
        for block in table.blocks:
            parts.append(rows[:, ROW_HEAD : ROW_HEAD + block.width])
            blocks.append(block)
    piece = decode(np.concatenate(parts, 1), blocks, bool((head[:, 1] >= 0).any()), groups)
    columns = {**_named(found, loss_part), **piece.columns}
    for name in _unknown([table for table, _ in found]):
        columns.pop(name, None)
    return replace(piece, columns=columns)


def _aligned(rows: FloatArray, steps: FloatArray) -> FloatArray:
    """Return a row for each step, one of `NEVER` where there is none."""
    _, here, there = np.intersect1d(steps, rows[:, 0], return_indices=True)
    whole = np.full((len(steps), rows.shape[1]), NEVER)
    whole[here] = rows[there]
    return whole


def _named(found: Sequence[Read], loss_part: int) -> dict[str, Cells]:
    """Return the metrics, and the losses of other parts: `loss_2` is that of the second part."""
    columns: dict[str, tuple[FloatArray, BoolArray]] = {}
    for table, rows in found:
        ran = rows[:, 0] >= 0
        own = {name: rows[:, -place] for place, name in enumerate(reversed(table.metrics), 1)}
        if table.has_loss and table.number != loss_part:
            own[f"loss_{table.number + 1}"] = rows[:, LOSS]
        for name, values in own.items():
            before, was = columns.get(name, (np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)))
            columns[name] = np.where(ran, values, before), was | ran
    return {name: _cells(values, present) for name, (values, present) in columns.items()}


def _unknown(tables: Sequence[Table]) -> list[str]:
    """Return the columns that count what nobody showed: a batch, or weights from before the update."""
    unknown = [] if any(table.has_batch for table in tables) else ["input_nonfinite", "label_nonfinite"]
    return unknown + (["weight_nonfinite"] if any(table.is_after for table in tables) else [])


def _cells(values: FloatArray, present: BoolArray) -> Cells:
    return values, None if present.all() else present


def _of_their_step(read: Sequence[Read]) -> list[Read]:
    """Return rows with the scale that the step was made with and the updates there were after it."""
    read = [(table, rows.copy()) for table, rows in read]
    early = [one for one in read if one[0].blocks and not one[0].is_after]
    for table, rows in read:
        if table.blocks and table.is_after and table.blocks[0].scaling == "dynamic":
            rows[:, SCALE] *= scale_moved(rows, table.blocks, rows[:, -1 - len(table.metrics)])
    for optimizer in {id(table.optimizer): table.optimizer for table, _ in early}.values():
        if hasattr(optimizer, "iterations") or hasattr(optimizer, "inner_optimizer"):
            _shift([one for one in early if one[0].optimizer is optimizer], optimizer)
    return list(read)


def scale_moved(rows: FloatArray, blocks: Sequence[BlockShape], scaler_step: FloatArray) -> FloatArray:
    """Return by how much a loss scale that was read after the update was larger before it.

    A LossScaleOptimizer halves it after a bad step, and sets its step counter to 0 when it doubles it.
    """
    width = ROW_HEAD + sum(block.width for block in blocks)
    is_bad = nonfinite_elements(rows[:, :width], blocks) > 0
    is_doubled = ~is_bad & (scaler_step == 0)
    return np.where(is_bad, 2.0, np.where(is_doubled, 0.5, 1.0))


def _shift(read: Sequence[Read], optimizer: Optimizer) -> None:
    """Put into each row how many updates there were before the next one: so many there were after it."""
    tables = np.concatenate([np.full(len(rows), place) for place, (_, rows) in enumerate(read)])
    places: IntArray = np.concatenate([np.arange(len(rows)) for _, rows in read])
    steps = np.concatenate([rows[:, 0] for _, rows in read])
    updates = np.concatenate([rows[:, UPDATES] for _, rows in read])
    order = np.lexsort((tables, steps))
    now = float(optimizer_step_of(optimizer))
    after = np.append(updates[order][1:], now)
    for table, place, value in zip(tables[order], places[order], after, strict=True):
        read[table][1][place, UPDATES] = value
