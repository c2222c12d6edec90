"""Rows of the ring become series: the host's half of the measurement, in plain numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainvitals.probe.gradient_sizes import GradientSizes, layers_of, narrowed
from trainvitals.probe.layers import Groups
from trainvitals.probe.row import (
    BLOCK_HEAD,
    EXTRAS,
    NOT_MEASURED,
    ROW_HEAD,
    SMALLEST_SAFE_SUM,
    details_width,
    part_width,
)
from trainvitals.rows import Cells
from trainvitals.wire import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class BlockShape:
    """How a block of a row is to be read; `places` says which variable of the layout each column is.

    `details` gives those of some steps for a part of the variables, `[m, 1 + part_width]`; None where they
    are in every row.
    """

    places: IntArray
    scaling: str
    is_main: bool
    has_rate: bool
    details: Sequence[tuple[slice, Callable[[], FloatArray]]] | None
    is_unscaled: bool = False  # the gradients were divided by the scale before they were measured
    tells_skip: bool = False  # the last number says whether the scaler skipped the update
    is_thinned: bool = False  # the half sums are not in every row
    elements: IntArray | None = None  # of each variable; None: its details tell nothing of its sizes

    @property
    def width(self) -> int:
        """Return how many numbers the block takes in a row."""
        count = len(self.places)
        return BLOCK_HEAD + (count if self.details is not None else details_width(count)) + self.tells_skip


@dataclass(frozen=True, slots=True)
class Decoded:
    """The series of some rows, as a `Rows` takes them."""

    steps: IntArray
    columns: dict[str, Cells]
    layer_columns: dict[str, Cells]


def decode(
    rows: FloatArray,
    blocks: Sequence[BlockShape],
    has_loss: bool,
    groups: Groups,
    *,
    has_asked: bool = False,
) -> Decoded:
    """Return the series in `rows`; `has_asked` if the host had details written in some of these steps."""
    steps = rows[:, 0].astype(np.int64)
    columns: dict[str, Cells] = {}
    if has_loss:
        columns["loss"] = _cells(rows[:, 2], rows[:, 1] == rows[:, 0])
    columns["batch_size"] = _cells(_narrow_count(rows[:, 3]), rows[:, 3] > 0)
    parts = _parts(rows, blocks, has_asked)
    layer_columns = (
        _gradients(rows, parts, groups, columns) if any(len(p.shape.places) for p in parts) else {}
    )
    if parts:
        _optimizer_columns(next((p for p in parts if p.shape.is_main), parts[0]), columns)
        _extras(parts, columns)
    kept = {name: cells for name, cells in columns.items() if cells[1] is None or cells[1].any()}
    return Decoded(steps, kept, layer_columns)


def nonfinite_elements(rows: FloatArray, blocks: Sequence[BlockShape]) -> FloatArray:
    """Return how many elements of all gradients are not finite, for each row."""
    counts = [part.counts.sum(1) for part in _parts(rows, blocks, False) if part.counts is not None]
    return np.sum(counts, axis=0) if counts else np.zeros(len(rows))


@dataclass(frozen=True, slots=True)
class _Part:
    """One block's numbers over all rows."""

    shape: BlockShape
    ran: BoolArray
    is_measured: BoolArray  # its gradients
    scale: FloatArray
    rate: FloatArray
    optimizer_step: FloatArray
    half_sums: FloatArray
    extras: FloatArray | None  # None: nothing was suspicious, they were not measured
    counts: FloatArray | None  # None: all of them are 0
    skips: FloatArray | None  # None: whether the update was skipped is not told
    sizes: FloatArray | None  # the largest values and the shares of zeros, `NOT_MEASURED` where unknown


def _parts(rows: FloatArray, blocks: Sequence[BlockShape], has_asked: bool) -> list[_Part]:
    parts, start = [], ROW_HEAD
    for shape in blocks:
        block = rows[:, start : start + shape.width]
        ran = block[:, 0] == rows[:, 0]
        numbers = block[:, BLOCK_HEAD : shape.width - shape.tells_skip]
        details = numbers if shape.details is None else _details(rows, ran, numbers, shape.details, has_asked)
        count, extras = len(shape.places), len(EXTRAS)
        half_sums = numbers if details is None else details[:, extras : extras + count]
        has_sizes = shape.details is not None and details is not None
        parts.append(
            _Part(
                shape=shape,
                ran=ran,
                is_measured=ran & ~(half_sums < 0).any(1) if shape.is_thinned else ran,
                scale=block[:, 1],
                rate=block[:, 2],
                optimizer_step=block[:, 3],
                half_sums=half_sums,
                extras=None if details is None else details[:, :extras],
                counts=None if details is None else details[:, extras + count : extras + 2 * count],
                sizes=details[:, extras + 2 * count :] if has_sizes and details is not None else None,
                skips=block[:, -1] if shape.tells_skip else None,
            )
        )
        start += shape.width
    return parts


def _details(
    rows: FloatArray,
    ran: BoolArray,
    half_sums: FloatArray,
    parts: Sequence[tuple[slice, Callable[[], FloatArray]]],
    has_asked: bool,
) -> FloatArray | None:
    """Return the details of every row, or None where the half sums are all there is to say."""
    count = half_sums.shape[1]
    with np.errstate(all="ignore"):
        total = half_sums.sum(1)
        is_exact = (total >= SMALLEST_SAFE_SUM) | (total < 0)  # below 0: not measured
        is_suspicious = ran & ~(np.isfinite(total + rows[:, 2]) & is_exact)
    if not count or not (has_asked or is_suspicious.any()):
        return None
    extras = len(EXTRAS)
    whole = np.full((len(rows), part_width(count)), NOT_MEASURED)
    whole[:, extras : extras + count] = half_sums
    whole[:, extras + count : extras + 2 * count] = 0.0
    for part, read in parts:
        details, size = read(), part.stop - part.start
        _, here, there = np.intersect1d(rows[:, 0], details[:, 0], return_indices=True)
        found = details[there, 1:]
        known = whole[here, :extras]
        whole[here, :extras] = np.where(
            np.minimum(known, found[:, :extras]) < 0,
            np.maximum(known, found[:, :extras]),
            known + found[:, :extras],
        )
        for kind in range((part_width(count) - extras) // count):
            place = extras + kind * count
            own = found[:, extras + kind * size : extras + (kind + 1) * size]
            whole[here, place + part.start : place + part.stop] = own
    return whole


def _gradients(
    rows: FloatArray, parts: Sequence[_Part], groups: Groups, columns: dict[str, Cells]
) -> dict[str, Cells]:
    """Add the whole gradient's columns and return those of each layer."""
    shape = (len(rows), len(groups.layers))
    squares, counts = np.zeros(shape), np.zeros(shape)
    present, is_left_out = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    total, total_count = np.zeros(len(rows)), np.zeros(len(rows))
    ran, is_whole = np.zeros(len(rows), dtype=bool), np.ones(len(rows), dtype=bool)
    sizes = GradientSizes(len(rows), groups)
    with np.errstate(all="ignore"):
        for part in parts:
            scale = np.ones_like(part.scale) if part.shape.is_unscaled else part.scale
            unscaled = part.half_sums * (2.0 / np.square(scale))[:, np.newaxis]
            unscaled[~part.is_measured] = 0.0
            total += unscaled.sum(1)
            left_out = part.ran & ~part.is_measured
            ran |= part.is_measured
            is_whole &= ~left_out
            layers = _add_by_layer(squares, unscaled, part.shape, groups)
            present[:, layers] |= part.is_measured[:, np.newaxis]
            is_left_out[:, layers] |= left_out[:, np.newaxis]
            if part.counts is not None:
                counted = np.where(part.is_measured[:, np.newaxis], part.counts, 0.0)
                total_count += counted.sum(1)
                _add_by_layer(counts, counted, part.shape, groups)
            if part.sizes is not None and part.shape.elements is not None:
                held = part.sizes
                if part.shape.is_unscaled:
                    held = _times(held, part.scale, len(part.shape.places))
                sizes.add(held, part.is_measured, part.shape.places, part.shape.elements)
        columns["grad_norm"] = _cells(np.sqrt(total), ran & is_whole)
        columns["grad_nonfinite"] = _cells(_narrow_count(total_count), ran & is_whole)
        norms = np.sqrt(squares)
    present &= ~is_left_out
    return {
        "layer_grad_norm": _cells(narrowed(norms), present),
        "layer_grad_nonfinite": _cells(_narrow_count(counts), present),
        **sizes.columns(),
    }


def _times(sizes: FloatArray, scale: FloatArray, count: int) -> FloatArray:
    """Return sizes as they were with the loss scale, which the largest values no longer have."""
    largest = sizes[:, :count]
    scaled = np.where(largest == NOT_MEASURED, NOT_MEASURED, largest * scale[:, np.newaxis])
    return np.concatenate([scaled, sizes[:, count:]], axis=1)


def _add_by_layer(sums: FloatArray, values: FloatArray, shape: BlockShape, groups: Groups) -> IntArray:
    """Add each variable's column to that of its layer; return the layers that got one."""
    order, found, starts = layers_of(shape.places, groups)
    if len(found):
        sums[:, found] += np.add.reduceat(values[:, order], starts, axis=1)
    return found


def _optimizer_columns(part: _Part, columns: dict[str, Cells]) -> None:
    if part.shape.scaling:
        columns["loss_scale"] = _cells(part.scale, part.ran)
    if part.shape.scaling == "dynamic":  # else than told: exactly when an element is not finite
        is_skipped = np.zeros(len(part.ran)) if part.counts is None else part.counts.sum(1)
        if part.skips is not None:
            is_skipped = part.skips
        columns["skipped"] = _cells((is_skipped > 0).astype(np.uint8), part.ran)
    if part.shape.has_rate:
        columns["learning_rate"] = _cells(part.rate, part.ran)
    columns["optimizer_step"] = _cells(part.optimizer_step.astype(np.int64), part.optimizer_step >= 0)


def _extras(parts: Sequence[_Part], columns: dict[str, Cells]) -> None:
    measured = [(part.extras, part.ran) for part in parts if part.extras is not None]
    if not measured:
        return
    for index, name in enumerate(EXTRAS):
        values = np.stack([extras[:, index] for extras, _ in measured])
        known = (values >= 0) & np.stack([ran for _, ran in measured])
        present: BoolArray = np.any(known, axis=0)
        columns[name] = _cells(_narrow_count(np.where(known, values, 0).max(0)), present)


def _cells(values: npt.NDArray[Any], present: BoolArray | None) -> Cells:
    return values, None if present is None or present.all() else present


def _narrow_count(counts: FloatArray) -> npt.NDArray[Any]:
    """Return whole numbers in as few bytes as they take: counts are nearly always 0."""
    largest = counts.max(initial=0.0)
    return counts.astype(np.uint8 if largest < 256 else np.int32 if largest < 2**31 else np.int64)
