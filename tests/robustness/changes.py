"""Changes to a log that leave the run what it was: fewer rows, another unit, fewer columns, a later start."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scoring.traces import Label
from trainvitals.wire import BoolArray, FloatArray, IntArray
from trainvitals_server.batch import Batch, Series

LEAST_BEFORE = 24  # rows that must be left before the trouble, or it is another one
LEAST_DURING = 4  # and between its beginning and the first non-finite value
LEAST_ROWS = 4
LEAST_LEARNED = 64  # rows that a run needs before the trouble until no loss is large or small by itself
SHIFT = 5.0  # times the size of the first loss
NOISE = 0.01
DIGITS = 3
LATER = 50_000
CROPS = (10, 20, 35, 50, 70, 85)  # percent

Change = Callable[[Batch, Label], Batch | None]


@dataclass(frozen=True, slots=True)
class Named:
    """A change; `step_of` maps the steps of the label, and `back` those that are told."""

    name: str
    change: Change
    step_of: Callable[[float], float] = lambda step: step
    back: Callable[[float], float] = lambda step: step

    def label(self, label: Label) -> Label:
        """Return what is known about the changed trace."""
        steps = (label.onset_step, label.nonfinite_step)
        onset, nonfinite = (None if step is None else self.step_of(step) for step in steps)
        return replace(label, onset_step=onset, nonfinite_step=nonfinite)


def trouble_row(batch: Batch, label: Label) -> int | None:
    """Return the row in which a failing run begins to fail; None for a healthy one."""
    known = [step for step in (label.onset_step, label.nonfinite_step) if step is not None]
    if known:
        return int(np.searchsorted(batch.steps, min(known)))
    return None if label.is_healthy else 0


def is_another(batch: Batch, label: Label, keep: BoolArray) -> bool:
    """Whether the trouble of a failing run is another one where only these rows are left."""
    row = trouble_row(batch, label)
    if row is None:
        return False
    if not keep[0] and row < LEAST_BEFORE:
        return True
    if label.nonfinite_step is not None and label.label.endswith("divergence_to_nan"):
        end = int(np.searchsorted(batch.steps, label.nonfinite_step))
        if keep[row:end].sum() < min(end - row, LEAST_DURING):
            return True
    return bool(keep[:row].sum() < min(row, LEAST_BEFORE))


def first_bad_rows(batch: Batch) -> BoolArray:
    """Return a mask of the first row with a non-finite value in each column."""
    mask = np.zeros(len(batch), dtype=bool)
    for series in batch.columns.values():
        bad = np.flatnonzero(series.present & ~np.isfinite(series.values))
        mask[bad[:1]] = True
    return mask


def thinned(every: int, offset: int = 0) -> Change:
    """Keep every so many rows; the first non-finite ones stay, as they are what the label is about."""

    def change(batch: Batch, label: Label) -> Batch | None:
        keep = np.arange(len(batch)) % every == offset
        keep |= first_bad_rows(batch)
        return None if keep.sum() < LEAST_ROWS or is_another(batch, label, keep) else chosen(batch, keep)

    return change


def averaged(rows: int) -> Change:
    """Log the mean of so many rows, as many programs do."""

    def change(batch: Batch, label: Label) -> Batch | None:
        ends = np.append(np.arange(rows - 1, len(batch) - 1, rows), len(batch) - 1)
        keep = np.zeros(len(batch), dtype=bool)
        keep[ends] = True
        if len(ends) < LEAST_ROWS or is_another(batch, label, keep):
            return None
        columns = {name: mean_of(series, rows, ends) for name, series in batch.columns.items()}
        return Batch(batch.steps[ends], columns)

    return change


def mean_of(series: Series, rows: int, ends: IntArray) -> Series:
    """Return means over the present cells of each group of rows."""
    starts = np.arange(len(ends)) * rows
    present = np.add.reduceat(series.present.astype(np.float64), starts)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(np.where(series.present, series.values, 0.0), starts)
        return Series(sums / np.maximum(present, 1), present > 0)


def cropped(rows: Callable[[int], int]) -> Change:
    """Begin later, where that is well before the trouble."""

    def change(batch: Batch, label: Label) -> Batch | None:
        row, first = trouble_row(batch, label), rows(len(batch))
        if first < 1 or len(batch) - first < LEAST_ROWS or (row is not None and row - first < LEAST_BEFORE):
            return None
        return batch.slice(first, len(batch))

    return change


def ended(share: float) -> Change:
    """End a healthy run earlier."""

    def change(batch: Batch, label: Label) -> Batch | None:
        rows = int(share * len(batch))
        return batch.slice(0, rows) if label.is_healthy and rows >= LEAST_ROWS else None

    return change


def without(name: str) -> Change:
    """Leave a column out, where the label is not about it."""

    def change(batch: Batch, label: Label) -> Batch | None:
        is_about = name == "grad_norm" and label.label == "nonfinite_grad_norm"
        if name not in batch.columns or is_about:
            return None
        return Batch(batch.steps, {other: series for other, series in batch.columns.items() if other != name})

    return change


def with_loss(change_loss: Callable[[FloatArray, np.random.Generator], FloatArray]) -> Change:
    """Change the values of the loss."""

    def change(batch: Batch, label: Label) -> Batch | None:
        loss = batch.columns.get("loss")
        if loss is None:
            return None
        rng = np.random.default_rng(zlib.crc32(label.name.encode()))
        with np.errstate(over="ignore", invalid="ignore"):
            series = Series(change_loss(loss.values, rng), loss.present)
        return Batch(batch.steps, {**batch.columns, "loss": series})

    return change


def shifted(batch: Batch, label: Label) -> Batch | None:
    """Add a constant, where the run knows itself before the trouble."""
    loss, row = batch.columns.get("loss"), trouble_row(batch, label)
    if loss is None or not loss.present.any() or (row is not None and row < LEAST_LEARNED):
        return None
    first = float(loss.values[loss.present][0])
    return with_loss(lambda values, _: values + SHIFT * abs(first))(batch, label)


def sparse(batch: Batch, label: Label) -> Batch | None:
    """Lose a third of the finite losses, the rest of the row stays."""
    loss, row = batch.columns.get("loss"), trouble_row(batch, label)
    if loss is None or (row is not None and row < 2 * LEAST_BEFORE):
        return None
    rng = np.random.default_rng(zlib.crc32(label.name.encode()))
    present = loss.present & ((rng.random(len(batch)) > 1 / 3) | ~np.isfinite(loss.values))
    return Batch(batch.steps, {**batch.columns, "loss": Series(loss.values, present)})


def stepped(step_of: Callable[[IntArray], IntArray]) -> Change:
    """Give the rows other steps."""
    return lambda batch, _: Batch(step_of(batch.steps), batch.columns)


def rounded(values: FloatArray, _: np.random.Generator) -> FloatArray:
    """Return values as a log prints them: with so many significant digits."""
    size = np.abs(values)
    usable = np.isfinite(values) & (size > 0)
    places = np.floor(np.log10(np.where(usable, size, 1.0)))
    unit = 10.0 ** (places - DIGITS + 1)
    return np.where(usable, np.round(values / unit) * unit, values)


def noisy(values: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return values with a little noise."""
    return np.asarray(values * (1 + NOISE * rng.normal(size=len(values))))


def chosen(batch: Batch, keep: BoolArray) -> Batch:
    """Return some rows."""
    columns = {name: Series(one.values[keep], one.present[keep]) for name, one in batch.columns.items()}
    return Batch(batch.steps[keep], columns)


def _share(percent: int) -> Callable[[int], int]:
    return lambda rows: percent * rows // 100


CHANGES: Sequence[Named] = (
    Named("unchanged", lambda batch, _: batch),
    Named("every 2nd row", thinned(2)),
    Named("the other 2nd row", thinned(2, 1)),
    Named("every 5th row", thinned(5)),
    Named("every 10th row", thinned(10, 3)),
    Named("means of 5 rows", averaged(5)),
    Named("means of 20 rows", averaged(20)),
    Named("without the first 3 rows", cropped(lambda rows: 3)),
    Named("without the first 50 rows", cropped(lambda rows: 50)),
    *(Named(f"without the first {share} %", cropped(_share(share))) for share in CROPS),
    Named("the first 30 %", ended(0.3)),
    Named("the first 60 %", ended(0.6)),
    Named("loss x 0.1", with_loss(lambda values, _: values * 0.1)),
    Named("loss x 7", with_loss(lambda values, _: values * 7)),
    Named("loss + 5 x its first", shifted),
    Named("without gradient norm", without("grad_norm")),
    Named("without learning rate", without("learning_rate")),
    Named("without loss scale", without("loss_scale")),
    Named("1 % noise", with_loss(noisy)),
    Named("3 digits", with_loss(rounded)),
    Named("a third of the losses missing", sparse),
    Named("steps x 100", stepped(lambda s: s * 100), lambda s: s * 100, lambda s: s / 100),
    Named("begins at step 50,000", stepped(lambda s: s + LATER), lambda s: s + LATER, lambda s: s - LATER),
)
