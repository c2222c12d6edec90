"""Failing runs: a known failure inside the odd but healthy run that it happens in. Numpy only.

The failure is put into the rows as they are logged, so that it is there whatever lies between two rows. Its
size is told in the range that the run has covered before it; the same size is noise in one run and a
disaster in another.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from generators import HEALTHY, SCALERS, Columns, logged, rows_of, view_of
from trainvitals.wire import FloatArray
from trainvitals_server.batch import Batch

FLOAT32_MAX = 3.4e38
DIVERGENCE = frozenset({"gradual_divergence", "fast_divergence", "exploding_gradient"})
BLOWUP = frozenset({"immediate_blowup", "sudden_nan", "exploding_gradient", "nonfinite_gradient"})
SUDDEN = frozenset({"sudden_nan", "nonfinite_gradient"})
HOSTS = tuple(name for name in HEALTHY if name not in SCALERS)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failing run and what is known about it. Rows count from the first one that is logged."""

    batch: Batch
    host: str
    onset_row: int
    nonfinite_row: int | None
    kinds: frozenset[str]
    is_loud: bool = True


@dataclass(slots=True)
class Patient:
    """A healthy run that something is about to happen to."""

    rng: Generator
    columns: Columns
    onset: int
    span: float
    nonfinite: int | None = None
    kinds: frozenset[str] = DIVERGENCE
    is_loud: bool = True

    @property
    def left(self) -> int:
        """How many rows there are from the onset on."""
        return len(self.columns["loss"]) - self.onset

    def rise(self, heights: FloatArray) -> None:
        """Add `heights`, in ranges, to the loss from the onset on; the gradient norm goes along."""
        stop = self.onset + len(heights)
        with np.errstate(over="ignore"):
            self.columns["loss"][self.onset : stop] += heights * self.span
            if "grad_norm" in self.columns:
                self.columns["grad_norm"][self.onset : stop] *= 1 + heights
        self._overflow()

    def break_off(self, row: int, value: float = float("nan")) -> None:
        """Make everything non-finite from `row` on."""
        self.nonfinite = row if self.nonfinite is None else min(row, self.nonfinite)
        self.columns["loss"][row:] = value
        if "grad_norm" in self.columns:
            self.columns["grad_norm"][row:] = np.nan

    def drop_scaler(self) -> None:
        """Forget what the run's own scaler did."""
        for name in ("loss_scale", "skipped", "grad_nonfinite"):
            self.columns.pop(name, None)
        if "grad_norm" in self.columns:
            norm = self.columns["grad_norm"]
            norm[~np.isfinite(norm)] = np.median(norm)

    def _overflow(self) -> None:
        loss = self.columns["loss"]
        beyond = np.flatnonzero(~(np.abs(loss) <= FLOAT32_MAX))
        if len(beyond):
            self.break_off(int(beyond[0]), np.inf)


def failing(name: str, seed: int, host: str | None = None) -> Failure:
    """Return one failing run of the pattern `name`, in a healthy run of the shape `host`."""
    rng = np.random.default_rng((zlib.crc32(name.encode()), seed))
    host = host or str(rng.choice(HOSTS))
    view = view_of(rng)
    columns = rows_of(host, rng, view)
    onset = int(view.rows * rng.uniform(0.35, 0.6))
    before = columns["loss"][:onset]
    span = float(before.max() - before.min()) or abs(float(before[0]))
    patient = Patient(rng, columns, onset, span)
    FAILING[name](patient)
    return Failure(
        logged(patient.columns, view), host, patient.onset, patient.nonfinite, patient.kinds, patient.is_loud
    )


def immediate_blowup(patient: Patient) -> None:
    """Multiplies from the second row on."""
    patient.onset, patient.kinds = int(patient.rng.integers(1, 3)), BLOWUP
    size = float(np.abs(patient.columns["loss"][: patient.onset]).max())
    patient.span = size or 1.0
    decades = patient.rng.uniform(2.2, 12)
    patient.rise(10 ** np.minimum(decades * np.arange(1, patient.left + 1), 300))


def exponential_to_inf(patient: Patient) -> None:
    """Grows by the same factor each row until float32 ends."""
    rows = patient.left - int(patient.rng.integers(1, 5))
    begin = patient.rng.uniform(0.02, 0.5)
    rate = np.log(4 * FLOAT32_MAX / patient.span / begin) / rows
    patient.rise(begin * np.exp(rate * np.arange(1, patient.left + 1)))


def exponential_to_nan(patient: Patient) -> None:
    """Grows by the same factor each row until something inside the model ends."""
    rows = patient.left - int(patient.rng.integers(2, 6))
    begin, ceiling = patient.rng.uniform(0.02, 0.5), 10 ** patient.rng.uniform(1.5, 12)
    patient.rise(begin * np.exp(np.log(ceiling / begin) / rows * np.arange(patient.left)))
    patient.break_off(patient.onset + rows)


def linear_to_nan(patient: Patient) -> None:
    """Climbs evenly, far beyond where the run began, then breaks off."""
    rows = patient.left - int(patient.rng.integers(2, 6))
    patient.rise(10 ** patient.rng.uniform(1.2, 3) * np.arange(1, patient.left + 1) / rows)
    patient.break_off(patient.onset + rows)


def accelerating(patient: Patient) -> None:
    """Grows by a factor that grows itself."""
    rows = patient.left - int(patient.rng.integers(1, 5))
    begin, power = patient.rng.uniform(0.02, 0.3), patient.rng.uniform(1.5, 3)
    share = np.arange(1, patient.left + 1) / rows
    decades = np.log10(4 * FLOAT32_MAX / patient.span / begin) * share**power
    patient.rise(begin * 10 ** np.minimum(decades, 300))


def finite_divergence(patient: Patient) -> None:
    """Grows far beyond where it began, and stays there."""
    rows = int(patient.left * patient.rng.uniform(0.1, 0.6))
    top = 10 ** patient.rng.uniform(1.2, 5)
    grown = 0.1 * np.exp(np.log(top / 0.1) / rows * np.arange(patient.left))
    patient.rise(np.minimum(grown, top) * np.exp(0.1 * patient.rng.normal(size=patient.left)))


def fast_divergence(patient: Patient) -> None:
    """Grows beyond everything within a few rows."""
    rows = int(patient.rng.integers(4, 18))
    begin, top = patient.rng.uniform(0.3, 1), 10 ** patient.rng.uniform(3, 30)
    patient.rise(begin * np.exp(np.log(top / begin) / rows * np.arange(rows + 1)))
    patient.break_off(patient.onset + rows)


def sudden_nan(patient: Patient) -> None:
    """Breaks off from one row to the next."""
    patient.kinds = SUDDEN
    patient.break_off(patient.onset)


def gradient_first(patient: Patient) -> None:
    """Has a gradient that is not finite one to three rows before the loss."""
    patient.kinds = frozenset({"nonfinite_gradient", "loss_scale_collapse"})
    patient.nonfinite = patient.onset
    bad = np.arange(len(patient.columns["loss"])) >= patient.onset
    patient.drop_scaler()
    norm = patient.columns.setdefault("grad_norm", np.ones(len(bad)))
    norm[bad] = np.nan
    patient.columns["grad_nonfinite"] = np.where(bad, 9.0, 0.0)
    patient.break_off(patient.onset + int(patient.rng.integers(1, 4)))


def loss_scale_collapse(patient: Patient) -> None:
    """Has gradients that no loss scale can save."""
    patient.kinds = frozenset({"loss_scale_collapse"})
    patient.drop_scaler()
    rows = np.arange(len(patient.columns["loss"]))
    bad = rows >= patient.onset
    powers = float(patient.rng.integers(8, 16)) - np.maximum(rows - patient.onset, 0)
    scale = np.exp2(powers.astype(np.float64))
    patient.columns["loss"][bad] = patient.columns["loss"][patient.onset]
    if "grad_norm" in patient.columns:
        patient.columns["grad_norm"] = np.where(bad, np.nan, patient.columns["grad_norm"])
    skipped = np.where(bad, 1.0, 0.0)
    patient.columns |= {"loss_scale": scale, "skipped": skipped, "grad_nonfinite": 5.0 * skipped}


def persisted_spike(patient: Patient) -> None:
    """Jumps, and stays where it jumped to."""
    patient.kinds = DIVERGENCE | {"loss_spike"}
    patient.is_loud = False
    patient.rise(patient.rng.uniform(2, 30) * np.exp(0.05 * patient.rng.normal(size=patient.left)))


def recovered_spike(patient: Patient) -> None:
    """Jumps for a few rows and comes back."""
    patient.kinds = DIVERGENCE | {"loss_spike"}
    patient.is_loud = False
    rows = int(patient.rng.integers(1, 6))
    patient.rise(10 ** patient.rng.uniform(0.7, 3) * np.exp(-np.arange(rows) / 2))


def bad_batch(patient: Patient) -> None:
    """Has the same bad batch in each epoch: its loss is not finite, and the update is skipped."""
    patient.kinds = frozenset({"bad_batch", "sudden_nan", "nonfinite_gradient"})
    epoch = int(patient.rng.integers(15, 60))
    bad = (np.arange(len(patient.columns["loss"])) - patient.onset) % epoch == 0
    bad[: patient.onset] = False
    patient.drop_scaler()
    patient.columns["loss"][bad] = np.nan
    patient.nonfinite = patient.onset
    if "grad_norm" in patient.columns:
        patient.columns["grad_norm"][bad] = np.nan
        patient.columns |= {"skipped": np.where(bad, 1.0, 0.0), "loss_scale": np.full(len(bad), 1024.0)}


def late_epsilon(patient: Patient) -> None:
    """The gradient decays to round-off; then one step of Adam throws the model off."""
    patient.kinds = frozenset({"optimizer_epsilon"})
    patient.is_loud = False
    rows, rng = len(patient.columns["loss"]), patient.rng
    depth = rng.uniform(5.5, 9)
    decay = 10 ** (-depth * np.minimum(np.arange(rows) / (0.7 * patient.onset), 1))
    norm = rng.uniform(0.5, 5) * decay * np.exp(0.2 * rng.normal(size=rows))
    jump = 10 ** -np.arange(8.0)
    norm[patient.onset : patient.onset + 8] += rng.uniform(1, 100) * jump[: patient.left]
    patient.columns = {"loss": np.maximum(norm**1.5, 1e-12), "grad_norm": norm}


FAILING: dict[str, Callable[[Patient], None]] = {
    pattern.__name__: pattern
    for pattern in (
        immediate_blowup, exponential_to_inf, exponential_to_nan, linear_to_nan, accelerating,
        finite_divergence, fast_divergence, sudden_nan, gradient_first, loss_scale_collapse, persisted_spike,
        recovered_spike, bad_batch, late_epsilon,
    )
}  # fmt: skip
