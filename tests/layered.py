"""Made runs with gradients by layer: layers that fade, die, saturate or burst, and their healthy twins."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from traces import learning
from trainvitals.wire import FloatArray, Layer
from trainvitals_server.batch import Batch, Series

ROWS = 400


def layered(
    norms: FloatArray, loss: FloatArray, *, first_step: int = 0, present: FloatArray | None = None
) -> Batch:
    """Return a batch of these layer norms `[rows, layers]`, with the global norm that follows from them."""
    there = np.ones(norms.shape, bool) if present is None else present.astype(bool)
    total = np.sqrt((np.where(there, norms, 0.0) ** 2).sum(axis=1))
    every = np.ones(len(loss), bool)
    return Batch(
        np.arange(first_step, first_step + len(loss), dtype=np.int64),
        {"loss": Series(loss, every), "grad_norm": Series(total, every)},
        {"layer_grad_norm": Series(np.where(there, norms, 0.0), there)},
        tuple(Layer(name=f"d{place}", kind="Dense") for place in range(norms.shape[1])),
    )


def usual(layers: int, rows: int = ROWS, seed: int = 0) -> FloatArray:
    """Return norms around 1, each layer with its own size."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-1, 1, size=layers)
    return np.asarray(sizes * np.exp(0.3 * rng.normal(size=(rows, layers))))


def flat(rows: int = ROWS, seed: int = 0) -> FloatArray:
    """Return a loss that does not move."""
    return np.asarray(0.69 + 0.01 * np.random.default_rng(seed).normal(size=rows))


def vanishing(seed: int = 0) -> Batch:
    """Have each of ten layers get a fifth of the gradient of the next; the loss stays at ln 2."""
    return layered(usual(1, seed=seed) * 0.2 ** np.arange(10)[::-1], flat(seed=seed))


def deep_but_learning(seed: int = 0) -> Batch:
    """Fade just the same, but learn."""
    return layered(usual(1, seed=seed) * 0.2 ** np.arange(10)[::-1], learning(ROWS, seed=seed))


def uneven(seed: int = 0) -> Batch:
    """Have layers whose gradients differ by a factor of a hundred thousand, in no order."""
    sizes = np.array([1e-5, 1.0, 1e-4, 10.0, 1e-2, 1.0])
    return layered(usual(1, seed=seed) * sizes, flat(seed=seed))


def dead(seed: int = 0) -> Batch:
    """Lose the gradient of the first two of four layers at step 250, after a large one of the second."""
    norms = usual(4, seed=seed)
    norms[249, 1] = 900.0
    norms[250:, :2] = 0.0
    return layered(norms, flat(seed=seed))


def dead_from_the_start(seed: int = 0) -> Batch:
    """Have no gradient in the first two of four layers at all."""
    norms = usual(4, seed=seed)
    norms[:, :2] = 0.0
    return layered(norms, flat(seed=seed))


def zero_at_first(seed: int = 0) -> Batch:
    """Have a last layer that starts at zero: the others get a gradient from the second step on."""
    norms = usual(4, seed=seed)
    norms[0, :3] = 0.0
    return layered(norms, learning(ROWS, seed=seed))


def rarely_used(seed: int = 0) -> Batch:
    """Have an embedding that only some batches touch, and later fewer of them."""
    norms, rows = usual(4, seed=seed), np.arange(ROWS)
    norms[np.where(rows < 150, rows % 7, rows % 20) != 0, 0] = 0.0
    return layered(norms, learning(ROWS, seed=seed))


def idle_head(seed: int = 0) -> Batch:
    """Have a second head whose task comes only in the first half."""
    norms = usual(4, seed=seed)
    norms[200:, 3] = 0.0
    return layered(norms, learning(ROWS, seed=seed))


def in_turns(seed: int = 0) -> Batch:
    """Train two halves of the model in turns, as a GAN does: what does not train is missing."""
    present = np.ones((ROWS, 4))
    present[::2, :2], present[1::2, 2:] = 0.0, 0.0
    return layered(usual(4, seed=seed), flat(seed=seed), present=present)


def saturated(seed: int = 0) -> Batch:
    """Have layer 1 of four pass nothing on from step 250: it and layer 0 keep a hundred thousandth."""
    norms = usual(4, seed=seed)
    norms[250:, :2] *= 1e-5
    loss = learning(ROWS, seed=seed)
    loss[250:] = loss[230:250].mean() + 0.02 * np.random.default_rng(seed).normal(size=150)
    return layered(norms, loss)


def saturated_from_the_start(seed: int = 0) -> Batch:
    """Have layer 1 of four pass nothing on at all."""
    return layered(usual(1, seed=seed) * np.array([2e-6, 1e-6, 1.0, 2.0]), flat(seed=seed))


def converged(seed: int = 0) -> Batch:
    """Learn to the end: all gradients shrink together, to a hundred thousandth."""
    decay = 10.0 ** (-5 * np.minimum(np.arange(ROWS) / 200, 1))
    return layered(usual(4, seed=seed) * decay[:, np.newaxis], learning(ROWS, seed=seed))


def all_at_rest(seed: int = 0) -> Batch:
    """Come to rest at step 250: all gradients shrink, those of the first layers further."""
    norms = usual(4, seed=seed)
    norms[250:] *= [1e-5, 1e-5, 1e-2, 1e-2]
    return layered(norms, flat(seed=seed))


def bursting(seed: int = 0) -> Batch:
    """Have a small layer explode from step 300 on, below what the global norm shows."""
    norms = usual(4, seed=seed) * np.array([1e3, 1e-3, 1e3, 1e3])
    norms[300:, 1] *= 1e5
    return layered(norms, learning(ROWS, seed=seed))


def one_burst(seed: int = 0) -> Batch:
    """Have a small layer jump in one row."""
    norms = usual(4, seed=seed) * np.array([1e3, 1e-3, 1e3, 1e3])
    norms[300, 1] *= 1e5
    return layered(norms, learning(ROWS, seed=seed))


FAILING_LAYERS: dict[str, Callable[[int], Batch]] = {
    "vanishing_gradient": vanishing,
    "dead_units": dead,
    "saturation": saturated,
    "exploding_gradient": bursting,
}
HEALTHY_LAYERS: dict[str, Callable[[int], Batch]] = {
    item.__name__: item
    for item in (
        deep_but_learning,
        uneven,
        zero_at_first,
        rarely_used,
        in_turns,
        converged,
        all_at_rest,
        one_burst,
    )
}
