"""Rows of the ring become series: the host's half of the measurement, in plain numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainvitals.probe.layers import Groups
from trainvitals.rows import Cells
from trainvitals.wire import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class BlockShape:
    """How a block of a row is to be read; `places` says which variable of the layout each column is."""

    places: IntArray
    scaling: str
    is_main: bool
    has_rate: bool


@dataclass(frozen=True, slots=True)
class Decoded:
    """The series of some rows, as a `Rows` takes them."""

    steps: IntArray
    columns: dict[str, Cells]
    layer_columns: dict[str, Cells]


ROW_HEAD = 4
BLOCK_HEAD = 3
EXTRAS = ("input_nonfinite", "label_nonfinite", "weight_nonfinite")


def decode(rows: FloatArray, blocks: Sequence[BlockShape], has_loss: bool, groups: Groups) -> Decoded:
    """Return the series in `rows` of the ring."""
    steps = rows[:, 0].astype(np.int64)
    columns: dict[str, Cells] = {}
    if has_loss:
        columns["loss"] = _cells(rows[:, 2], rows[:, 1] == rows[:, 0])
    columns["batch_size"] = _cells(_narrow_count(rows[:, 3]), rows[:, 3] > 0)
    parts = _parts(rows, blocks)
    layer_columns = (
        _gradients(rows, parts, groups, columns) if any(len(p.shape.places) for p in parts) else {}
    )
    if parts:
        _optimizer_columns(next((p for p in parts if p.shape.is_main), parts[0]), columns)
        _extras(parts, columns)
    kept = {name: cells for name, cells in columns.items() if cells[1] is None or cells[1].any()}
    return Decoded(steps, kept, layer_columns)


@dataclass(frozen=True, slots=True)
class _Part:
    """One block's numbers over all rows."""

    shape: BlockShape
    ran: BoolArray
    scale: FloatArray
    rate: FloatArray
    extras: FloatArray
    half_sums: FloatArray
    counts: FloatArray
    optimizer_step: FloatArray


def _parts(rows: FloatArray, blocks: Sequence[BlockShape]) -> list[_Part]:
    parts, start = [], ROW_HEAD
    for shape in blocks:
        count = len(shape.places)
        stop = start + BLOCK_HEAD + len(EXTRAS) + 2 * count + 1
        block = rows[:, start:stop]
        sums = block[:, BLOCK_HEAD + len(EXTRAS) : -1]
        parts.append(
            _Part(
                shape=shape,
                ran=block[:, 0] == rows[:, 0],
                scale=block[:, 1],
                rate=block[:, 2],
                extras=block[:, BLOCK_HEAD : BLOCK_HEAD + len(EXTRAS)],
                half_sums=sums[:, :count],
                counts=sums[:, count:],
                optimizer_step=block[:, -1],
            )
        )
        start = stop
    return parts


def _gradients(
    rows: FloatArray, parts: Sequence[_Part], groups: Groups, columns: dict[str, Cells]
) -> dict[str, Cells]:
    """Add the whole gradient's columns and return those of each layer."""
    shape = (len(rows), len(groups.layers))
    squares, counts = np.zeros(shape), np.zeros(shape)
    present = np.zeros(shape, dtype=bool)
    total, total_count = np.zeros(len(rows)), np.zeros(len(rows))
    ran = np.zeros(len(rows), dtype=bool)
    with np.errstate(all="ignore"):
        for part in parts:
            unscaled = 2.0 * part.half_sums / np.square(part.scale)[:, np.newaxis]
            unscaled[~part.ran] = 0.0
            counted = np.where(part.ran[:, np.newaxis], part.counts, 0.0)
            total += unscaled.sum(1)
            total_count += counted.sum(1)
            ran |= part.ran
            for column, place in enumerate(part.shape.places):
                layer = groups.layer_of[place]
                if layer >= 0:
                    squares[:, layer] += unscaled[:, column]
                    counts[:, layer] += counted[:, column]
                    present[:, layer] |= part.ran
        columns["grad_norm"] = _cells(np.sqrt(total), ran)
        columns["grad_nonfinite"] = _cells(_narrow_count(total_count), ran)
        norms = np.sqrt(squares)
    return {
        "layer_grad_norm": _cells(_narrow_float(norms), present),
        "layer_grad_nonfinite": _cells(_narrow_count(counts), present),
    }


def _optimizer_columns(part: _Part, columns: dict[str, Cells]) -> None:
    if part.shape.scaling:
        columns["loss_scale"] = _cells(part.scale, part.ran)
    if part.shape.scaling == "dynamic":  # the scaler skips an update exactly when an element is not finite
        columns["skipped"] = _cells((part.counts.sum(1) > 0).astype(np.uint8), part.ran)
    if part.shape.has_rate:
        columns["learning_rate"] = _cells(part.rate, part.ran)
    columns["optimizer_step"] = _cells(part.optimizer_step.astype(np.int64), part.optimizer_step >= 0)


def _extras(parts: Sequence[_Part], columns: dict[str, Cells]) -> None:
    for index, name in enumerate(EXTRAS):
        values = np.stack([part.extras[:, index] for part in parts])
        known = (values >= 0) & np.stack([part.ran for part in parts])
        present: BoolArray = np.any(known, axis=0)
        columns[name] = _cells(_narrow_count(np.where(known, values, 0).max(0)), present)


def _cells(values: npt.NDArray[Any], present: BoolArray | None) -> Cells:
    return values, None if present is None or present.all() else present


def _narrow_count(counts: FloatArray) -> npt.NDArray[Any]:
    """Return whole numbers in as few bytes as they take: counts are nearly always 0."""
    largest = counts.max(initial=0.0)
    return counts.astype(np.uint8 if largest < 256 else np.int32 if largest < 2**31 else np.int64)


def _narrow_float(values: FloatArray) -> npt.NDArray[Any]:
    """Return float32 (norms are sums of float32 anyway), unless a value would leave its range."""
    with np.errstate(all="ignore"):
        narrow = values.astype(np.float32)
        is_lost = np.isfinite(values) & (values != 0) & (~np.isfinite(narrow) | (np.abs(narrow) < 1.2e-38))
    return values if is_lost.any() else narrow
