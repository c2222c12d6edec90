"""Healthy runs that look odd: seeded losses, gradient norms and loss scales. Numpy only.

Each shape is one way in which a healthy loss does not simply fall. A seed also draws how the run is seen: how
often it logs, how long it is, in which unit, and whether gradient norms and a loss scaler are in the log.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from traces import batch_of
from trainvitals.wire import FloatArray
from trainvitals_server.batch import Batch

Shape = Callable[[Generator, int], FloatArray]
Columns = dict[str, FloatArray]
ROWS = {1: (250, 1200), 10: (120, 400), 100: (60, 200)}  # logged rows, by steps between them
FIRST_STEPS = (0, 1, 40_000)


@dataclass(frozen=True, slots=True)
class View:
    """How a run is seen."""

    every: int
    rows: int
    unit: float
    first_step: int
    has_norm: bool
    has_scaler: bool


def view_of(rng: Generator) -> View:
    """Draw how a run is seen."""
    every = int(rng.choice(list(ROWS)))
    seen = int(rng.integers(3))
    return View(
        every, int(rng.integers(*ROWS[every])), 10 ** rng.uniform(-3, 3), int(rng.choice(FIRST_STEPS)),
        has_norm=seen > 0, has_scaler=seen > 1,
    )  # fmt: skip


def healthy(name: str, seed: int) -> Batch:
    """Return one healthy run of the shape `name`."""
    rng = np.random.default_rng((zlib.crc32(name.encode()), seed))
    view = view_of(rng)
    return logged(rows_of(name, rng, view), view)


def rows_of(name: str, rng: Generator, view: View) -> Columns:
    """Return the rows of a healthy run that are logged."""
    steps = view.rows * view.every
    loss = HEALTHY[name](rng, steps) * view.unit
    norm = gradient_norm(rng, loss) * view.unit
    columns = {"loss": loss}
    if view.has_scaler or name in SCALERS:
        columns |= SCALERS.get(name, ordinary_scaler)(rng, steps)
    if view.has_norm:
        columns["grad_norm"] = np.where(columns.get("skipped", np.zeros(steps)) > 0, np.inf, norm)
    return {name: column[:: view.every].copy() for name, column in columns.items()}


def logged(rows: Columns, view: View) -> Batch:
    """Return rows with their steps."""
    steps = range(view.first_step, view.first_step + len(rows["loss"]) * view.every, view.every)
    return batch_of(rows, steps=steps)


def falling(
    rng: Generator, steps: int, start: float, floor: float, noise: float = 0.05, share: float = 0.15
) -> FloatArray:
    """Return a loss that falls with a time constant of about `share` of the run; the noise is relative."""
    tau = steps * share * rng.uniform(0.5, 2)
    curve = floor + (start - floor) * np.exp(-np.arange(steps) / tau)
    return np.asarray(curve * (1 + noise * rng.normal(size=steps)))


def learning(rng: Generator, steps: int) -> FloatArray:
    """Return an ordinary loss."""
    start = rng.uniform(1, 11)
    return np.abs(falling(rng, steps, start, start * rng.uniform(0.02, 0.6), rng.uniform(0.01, 0.15)))


def kl_ramp(rng: Generator, steps: int) -> FloatArray:
    """Reconstruction falls while the weight of the KL term ramps up, once or in cycles."""
    cycles = int(rng.choice([1, 1, 1, 4]))
    period = steps / cycles
    begin, end = rng.uniform(0, 0.2) * period, rng.uniform(0.3, 1) * period
    weight = np.clip((np.arange(steps) % period - begin) / (end - begin), 0, 1)
    divergence = rng.uniform(0.1, 4) * (1 - 0.5 * weight) * np.exp(0.05 * rng.normal(size=steps))
    return np.asarray(falling(rng, steps, 2.0, rng.uniform(0.3, 1.5)) + weight * divergence)


def curriculum(rng: Generator, steps: int) -> FloatArray:
    """A harder task begins now and then."""
    parts, left = int(rng.integers(2, 6)), steps
    pieces = []
    for part in range(parts):
        length = left if part == parts - 1 else steps // parts
        start = rng.uniform(1, 2.5) * (1 + 0.3 * part)
        pieces.append(falling(rng, length, start, rng.uniform(0.1, 0.5) * start, 0.08))
        left -= length
    return np.concatenate(pieces)


def larger_tasks(rng: Generator, steps: int) -> FloatArray:
    """The next part of the data is of another size: its loss begins far above where the first one began."""
    parts, left, pieces = int(rng.integers(2, 5)), steps, []
    for part in range(parts):
        length = left if part == parts - 1 else steps // parts
        start = 1.0 if not part else rng.uniform(2, 40)
        pieces.append(falling(rng, length, start, rng.uniform(0.02, 0.2) * start, rng.uniform(0.02, 0.15)))
        left -= length
    return np.concatenate(pieces)


def warm_restarts(rng: Generator, steps: int) -> FloatArray:
    """The learning rate is reset: the loss bumps up and comes down again."""
    loss, period = falling(rng, steps, 2.3, 0.2), steps // int(rng.integers(2, 6))
    for begin in range(period, steps, period):
        after = np.arange(steps - begin)
        loss[begin:] += rng.uniform(0.2, 1.5) * np.exp(-after / (period * rng.uniform(0.05, 0.3)))
    return loss


def class_imbalance(rng: Generator, steps: int) -> FloatArray:
    """A rare class costs a multiple whenever it turns up."""
    loss = np.abs(falling(rng, steps, 0.7, 0.01, 0.3))
    rare = rng.random(steps) < rng.uniform(0.003, 0.08)
    return np.asarray(loss + rare * rng.uniform(0.3, 3, steps))


def gan(rng: Generator, steps: int) -> FloatArray:
    """One of two losses that fight: it wanders about its level, or rises as the other one wins."""
    pull, push = 10 / steps, rng.uniform(0.2, 1.5) * np.sqrt(10 / steps)
    walk = np.zeros(steps)
    kicks = push * rng.normal(size=steps)
    for step in range(1, steps):
        walk[step] = walk[step - 1] * (1 - pull) + kicks[step]
    trend = rng.uniform(0, 1.5) * np.arange(steps) / steps
    noise = rng.uniform(0.05, 0.3) * rng.normal(size=steps)
    return np.asarray(0.69 * np.exp(0.3 * walk + trend + noise))


def policy_gradient(rng: Generator, steps: int) -> FloatArray:
    """Scatters around zero with heavy tails; it grows as the returns grow."""
    growth = 1 + rng.uniform(0, 3) * np.arange(steps) / steps
    return np.asarray(rng.standard_t(rng.uniform(2, 5), size=steps) * growth)


def crossing_zero(rng: Generator, steps: int) -> FloatArray:
    """A negative log-likelihood falls through zero."""
    noise = rng.uniform(0.02, 0.3) * rng.normal(size=steps)
    return np.asarray(falling(rng, steps, 6, 1, 0) - rng.uniform(2, 5) + noise)


def from_a_thousand(rng: Generator, steps: int) -> FloatArray:
    """Starts at a thousand, falls by orders of magnitude at once."""
    start, floor = rng.uniform(500, 5000), rng.uniform(1, 50)
    return np.abs(falling(rng, steps, start, floor, 0.1, rng.uniform(0.005, 0.2)))


def near_zero(rng: Generator, steps: int) -> FloatArray:
    """Falls for ever, by orders of magnitude, with multiplicative noise."""
    decades = rng.uniform(2, 9) * np.arange(steps) / steps
    return np.asarray(10**-decades * np.exp(rng.uniform(0.1, 0.7) * rng.normal(size=steps)))


def label_smoothing(rng: Generator, steps: int) -> FloatArray:
    """Stays on a high floor."""
    return falling(rng, steps, 2.5, rng.uniform(0.9, 2.2), rng.uniform(0.002, 0.03), 0.05)


def warm_up_bump(rng: Generator, steps: int) -> FloatArray:
    """Rises once while the learning rate warms up."""
    middle, width = steps * rng.uniform(0.01, 0.1), steps * rng.uniform(0.005, 0.04)
    bump = np.exp(-(((np.arange(steps) - middle) / width) ** 2))
    return np.asarray(falling(rng, steps, 2.5, 0.4) + rng.uniform(0.1, 2.5) * bump)


def saw_tooth(rng: Generator, steps: int) -> FloatArray:
    """The mean grows within each accumulation of batches and starts again."""
    period = int(rng.integers(2, 17))
    return np.asarray(learning(rng, steps) * (1 + rng.uniform(0.1, 1) * (np.arange(steps) % period) / period))


def epoch_boundaries(rng: Generator, steps: int) -> FloatArray:
    """Jumps up, or down, where an epoch begins."""
    epoch = max(5, steps // int(rng.integers(2, 30)))
    jump = np.exp(-(np.arange(steps) % epoch) / (epoch * rng.uniform(0.05, 0.3)))
    return np.asarray(learning(rng, steps) * (1 + rng.uniform(-0.5, 1) * jump))


def heavy_tails(rng: Generator, steps: int) -> FloatArray:
    """Has outliers of any size now and then."""
    tails = np.abs(rng.standard_t(rng.uniform(1.5, 3), size=steps))
    return np.asarray(falling(rng, steps, 2.5, 0.3, 0) + rng.uniform(0.02, 0.2) * tails)


def tiny_batch(rng: Generator, steps: int) -> FloatArray:
    """Scatters like one sample a batch."""
    return np.asarray(rng.gamma(rng.uniform(0.3, 2), size=steps) * falling(rng, steps, 2.5, 0.3, 0))


def huge_batch(rng: Generator, steps: int) -> FloatArray:
    """Has hardly any noise."""
    return falling(rng, steps, 2.5, rng.uniform(0.1, 2), 10 ** rng.uniform(-6, -3))


def slow_drift(rng: Generator, steps: int) -> FloatArray:
    """Falls, then creeps up for the rest of the run, as on data that change."""
    creep = rng.uniform(0, 1.5) * np.clip(np.arange(steps) / steps - rng.uniform(0.2, 0.6), 0, 1)
    return np.asarray(learning(rng, steps) * (1 + creep))


def alternating_datasets(rng: Generator, steps: int) -> FloatArray:
    """Two sets of data take turns, one harder than the other; the second one may come in late."""
    turn = int(np.exp(rng.uniform(0, np.log(max(2, steps / 4)))))
    is_hard = (np.arange(steps) // max(turn, 1)) % 2 == 1
    if rng.random() < 0.3:
        is_hard = rng.random(steps) < rng.uniform(0.05, 0.5)
    return np.where(is_hard, rng.uniform(1.2, 4), 1) * learning(rng, steps)


def constant(rng: Generator, steps: int) -> FloatArray:
    """Never moves."""
    return np.full(steps, rng.uniform(0.1, 7))


def gradient_norm(rng: Generator, loss: FloatArray) -> FloatArray:
    """Return a norm that follows a part of the loss, with log-normal noise and rare large ones."""
    spread = float(np.median(np.abs(loss))) or 1.0
    follow = (np.abs(loss) / spread + 1e-3) ** rng.uniform(0, 1)
    noise = np.exp(rng.uniform(0.05, 0.6) * rng.normal(size=len(loss)))
    rare = 1 + (rng.random(len(loss)) < 0.005) * rng.exponential(20, len(loss))
    return np.asarray(10 ** rng.uniform(-2, 2) * follow * noise * rare)


def scaler(rng: Generator, steps: int, start: float, growth_steps: int, hysteresis: int) -> Columns:
    """Return what a dynamic loss scaler logs: it halves until it fits, and doubles until it does not."""
    limit = 2.0 ** int(rng.integers(6, 14))
    scale, clean, strikes = start, 0, 0
    scales, skipped = np.empty(steps), np.zeros(steps)
    for step in range(steps):
        scales[step] = scale
        if scale > limit:
            skipped[step], clean, strikes = 1, 0, strikes + 1
            scale, strikes = (scale / 2, 0) if strikes >= hysteresis else (scale, strikes)
        else:
            clean += 1
            scale *= 2 if clean % growth_steps == 0 else 1
    return {"loss_scale": scales, "skipped": skipped, "grad_nonfinite": 5.0 * skipped}


def ordinary_scaler(rng: Generator, steps: int) -> Columns:
    """Return a scaler with the defaults of Keras."""
    return scaler(rng, steps, 2.0**15, 2000, 1)


def overflow_bursts(rng: Generator, steps: int) -> Columns:
    """Return a scaler that starts far too high."""
    return scaler(rng, steps, 2.0 ** int(rng.integers(15, 33)), 2000, 1)


def skip_after_doubling(rng: Generator, steps: int) -> Columns:
    """Return a scaler that tries a larger scale often, and may need two skips to come back."""
    return scaler(rng, steps, 2.0**16, int(rng.integers(20, 300)), int(rng.integers(1, 3)))


def patient_search(rng: Generator, steps: int) -> Columns:
    """Return a scaler that starts far too high and takes two overflows to halve."""
    return scaler(rng, steps, 2.0 ** int(rng.integers(20, 33)), 2000, 2)


SCALERS: dict[str, Callable[[Generator, int], Columns]] = {
    "overflow_bursts": overflow_bursts,
    "skip_after_doubling": skip_after_doubling,
    "patient_search": patient_search,
}
SHAPES: tuple[Shape, ...] = (
    learning, kl_ramp, curriculum, warm_restarts, class_imbalance, gan, policy_gradient, crossing_zero,
    from_a_thousand, near_zero, label_smoothing, warm_up_bump, saw_tooth, epoch_boundaries, heavy_tails,
    tiny_batch, huge_batch, slow_drift, alternating_datasets, constant, larger_tasks,
)  # fmt: skip
HEALTHY: dict[str, Shape] = {shape.__name__: shape for shape in SHAPES} | dict.fromkeys(SCALERS, learning)
