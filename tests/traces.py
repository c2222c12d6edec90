"""Made runs: columns of losses and gradients that fail, or only look as if they did. Numpy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from trainvitals.wire import FloatArray, Layer
from trainvitals_server.batch import Batch, Series

NAN = float("nan")
LAYERS = (
    Layer(name="embed", kind="Dense"),
    Layer(name="hidden", kind="Dense"),
    Layer(name="head", kind="Dense"),
)


def batch_of(
    columns: Mapping[str, npt.ArrayLike],
    *,
    steps: Sequence[int] | None = None,
    present: Mapping[str, npt.ArrayLike] | None = None,
    bad_layers: Mapping[int, Sequence[int]] | None = None,
) -> Batch:
    """Return a batch; `bad_layers` gives the numbers of the layers of LAYERS with bad gradients, by row."""
    values = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    rows = len(next(iter(values.values())))
    there = {name: np.asarray((present or {}).get(name, np.ones(rows, bool)), dtype=bool) for name in values}
    counts = np.zeros((rows, len(LAYERS)))
    for row, numbers in (bad_layers or {}).items():
        counts[row, list(numbers)] = 5
    layers = {"layer_grad_nonfinite": Series(counts, np.ones(counts.shape, bool))} if bad_layers else {}
    return Batch(
        np.arange(rows, dtype=np.int64) if steps is None else np.asarray(steps, dtype=np.int64),
        {name: Series(values[name], there[name]) for name in values},
        layers,
        LAYERS if bad_layers else (),
    )


def learning(
    rows: int, *, start: float = 2.5, floor: float = 0.3, noise: float = 0.05, seed: int = 0
) -> FloatArray:
    """Return a loss that falls from `start` to `floor` as it should."""
    rng = np.random.default_rng(seed)
    curve = floor + (start - floor) * np.exp(-np.arange(rows) / (rows / 6))
    return np.asarray(curve * (1 + noise * rng.normal(size=rows)))


def gradual(seed: int = 0) -> Batch:
    """Leave the band at step 300 and rise by 6 % a step until float32 ends."""
    loss = learning(2000, seed=seed)
    loss[300:] += 0.1 * np.exp(0.06 * np.arange(1700))
    rate = 0.1 / (1 + np.arange(2000) // 7)
    return batch_of({"loss": np.where(loss > 3.4e38, np.inf, loss), "learning_rate": rate})


def fast(seed: int = 0) -> Batch:
    """Blow up within ten steps, from step 300 on; NaN at step 310."""
    loss = learning(330, seed=seed)
    loss[300:310] += 0.3 * 10.0 ** (0.3 * np.arange(10) ** 1.9)
    loss[310:] = NAN
    return batch_of({"loss": loss})


def sudden(seed: int = 0) -> Batch:
    """Turn NaN at step 200, loss, gradients and weights in the same row."""
    loss, bad = learning(230, seed=seed), np.arange(230) >= 200
    loss[bad] = NAN
    norm = np.where(bad, NAN, 1.0 + 0.1 * np.sin(np.arange(230)))
    return batch_of(
        {"loss": loss, "grad_norm": norm, "grad_nonfinite": 9.0 * bad, "weight_nonfinite": 9.0 * bad},
        present={"weight_nonfinite": bad},
        bad_layers=dict.fromkeys(range(200, 230), (0, 1, 2)),
    )


def gradient_first(seed: int = 0) -> Batch:
    """Have a NaN gradient at step 80 while the loss follows at 81."""
    loss, bad = learning(100, seed=seed), np.arange(100) >= 80
    loss[81:] = NAN
    return batch_of({"loss": loss, "grad_norm": np.where(bad, NAN, 1.0), "grad_nonfinite": 7.0 * bad})


def healthy_half(seed: int = 0) -> Batch:
    """Skip like a healthy float16 run: at steps 0, 1, 9 and once after each doubling of the scale."""
    rows, skips = 4600, [0, 1, 9, 2018, 4022]
    scale = np.full(rows, 8192.0)
    scale[0], scale[1], scale[2:10] = 32768, 16384, 8192
    scale[10:2010], scale[2019:4020] = 4096, 4096
    bad = np.isin(np.arange(rows), skips)
    return batch_of(
        {"loss": learning(rows, seed=seed), "grad_norm": np.where(bad, np.inf, 1.0),
         "grad_nonfinite": 3.0 * bad,
         "loss_scale": scale, "skipped": 1.0 * bad}
    )  # fmt: skip


def collapse(seed: int = 0) -> Batch:
    """Have a NaN gradient at every step: the scale halves from 2**15 towards 0, the loss stays as it was."""
    rows = 200
    loss = 0.6 + 0.1 * np.random.default_rng(seed).random(rows)
    return batch_of(
        {"loss": loss, "grad_norm": np.full(rows, NAN), "grad_nonfinite": np.full(rows, 6.0),
         "loss_scale": 2.0 ** (15 - np.arange(rows)), "skipped": np.ones(rows)},
        bad_layers=dict.fromkeys(range(rows), (0,)),
    )  # fmt: skip


def spike(seed: int = 0) -> Batch:
    """Jump at step 200, for one batch."""
    loss = learning(400, seed=seed)
    loss[200] = 900.0
    return batch_of({"loss": loss})


def epsilon(seed: int = 0) -> Batch:
    """Learn to a loss of 0, gradient down to round-off, then jump at step 900 and come back."""
    rng = np.random.default_rng(seed)
    norm = 2.0 * 10.0 ** (-8 * np.minimum(np.arange(1000) / 600, 1)) * np.exp(0.2 * rng.normal(size=1000))
    loss = norm**1.5
    norm[900:908] = [80, 4, 180, 100, 50, 10, 1, 0.1]
    loss[901:908] = [0.8, 9.2, 0.6, 2.2, 0.4, 0.1, 0.01]
    return batch_of({"loss": loss, "grad_norm": norm})


def one_bad_batch(seed: int = 0) -> Batch:
    """Have a NaN loss at step 150 only; the scaler kept it out of the weights."""
    loss, bad = learning(400, seed=seed), np.arange(400) == 150
    loss[bad] = NAN
    return batch_of(
        {"loss": loss, "grad_norm": np.where(bad, NAN, 1.0), "grad_nonfinite": 4.0 * bad,
         "loss_scale": np.full(400, 1024.0), "skipped": 1.0 * bad}
    )  # fmt: skip


def exploding(seed: int = 0) -> Batch:
    """Have a gradient norm ten orders of magnitude larger from step 300 on; the loss stays as it was."""
    norm = np.exp(0.3 * np.random.default_rng(seed).normal(size=400))
    norm[300:] *= 1e10
    return batch_of({"loss": learning(400, seed=seed), "grad_norm": norm})


FAILING: dict[str, Callable[[int], Batch]] = {
    "gradual_divergence": gradual,
    "fast_divergence": fast,
    "sudden_nan": sudden,
    "nonfinite_gradient": gradient_first,
    "loss_scale_collapse": collapse,
    "loss_spike": spike,
    "optimizer_epsilon": epsilon,
    "bad_batch": one_bad_batch,
    "exploding_gradient": exploding,
}
