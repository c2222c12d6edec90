"""Made runs that do not learn, and runs that only look as if they did not. Numpy only; each takes a seed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from traces import NAN, batch_of, learning
from trainvitals_server.batch import Batch


def _noise(seed: int, rows: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(size=rows)


def never_learning(seed: int = 0) -> Batch:
    """Scatter around 0.7 from the first row on, at a learning rate of 1e-9."""
    rows = 800
    norm = 0.3 * np.exp(0.1 * _noise(seed + 1000, rows))
    loss = 0.7 + 0.04 * _noise(seed, rows)
    return batch_of({"loss": loss, "grad_norm": norm, "learning_rate": np.full(rows, 1e-9)})


def guessing(seed: int = 0) -> Batch:
    """Fall from 3.5 to ln 10 and stay there to a hair."""
    rows = 1600
    loss = math.log(10) + 1.2 * np.exp(-np.arange(rows) / 40) + 0.004 * _noise(seed, rows)
    return batch_of({"loss": loss})


def no_gradient(seed: int = 0) -> Batch:
    """Have a loss that changes with the batch and gradients that are exactly 0."""
    loss = 8.0 + 0.5 * _noise(seed, 200)
    return batch_of({"loss": loss, "grad_norm": np.zeros(200), "grad_nonfinite": np.zeros(200)})


def printed_zero(seed: int = 0) -> Batch:
    """Print 0 for a NaN loss from step 150 on; no gradients are logged."""
    loss = learning(300, seed=seed)
    loss[150:] = 0.0
    return batch_of({"loss": loss})


def alternating(seed: int = 0) -> Batch:
    """Bounce over the minimum in every step from step 100 on."""
    loss = learning(400, noise=0.01, seed=seed)
    loss[100:] += 0.4 * (np.arange(300) % 2) * (1 + 0.05 * _noise(seed, 300))
    return batch_of({"loss": loss})


def bouncing_in_noise(seed: int = 0) -> Batch:
    """Bounce over the minimum from step 400 on, by no more than the noise of a row."""
    loss = 0.3 + np.exp(-np.arange(1200) / 60) + 0.02 * _noise(seed, 1200)
    loss[400:] += 0.04 * (np.arange(800) % 2) * np.abs(1 + 0.2 * _noise(seed + 100, 800)) + 0.02 * _noise(
        seed + 200, 800
    )
    return batch_of({"loss": loss})


def restless(seed: int = 0) -> Batch:
    """Learn, then jump between the best and the start from step 500 on."""
    rng = np.random.default_rng(seed)
    loss = learning(1000, noise=0.02, seed=seed)
    loss[500:] += np.where(rng.random(500) < 0.5, rng.uniform(1.2, 1.8, 500), 0.0)
    return batch_of({"loss": loss})


def validation_of(
    training: Callable[[int], float], validation: Callable[[int], float], seed: int, *, noise: float = 0.005
) -> Batch:
    """Return 20 epochs of 50 steps with a validation in the last step of each."""
    rng = np.random.default_rng(seed)
    epochs, length = 20, 50
    loss = np.array([training(row // length) for row in range(epochs * length)])
    loss = loss * (1 + 0.05 * rng.normal(size=len(loss)))
    val = np.repeat([validation(epoch) + noise * rng.normal() for epoch in range(epochs)], length)
    there = np.arange(len(loss)) % length == length - 1
    return batch_of({"loss": loss, "val_loss": val}, present={"val_loss": there})


def overfitting(seed: int = 0) -> Batch:
    """Have the best validation at epoch 6; training goes on falling."""
    return validation_of(
        lambda epoch: 0.1 + 2 * math.exp(-epoch / 4), lambda epoch: 0.8 + 0.02 * (epoch - 6) ** 2, seed
    )


def bad_metric(seed: int = 0) -> Batch:
    """Have a metric that turns NaN at step 120."""
    rows = 200
    metric = np.where(np.arange(rows) >= 120, NAN, 0.8)
    there = np.arange(rows) % 10 == 0
    return batch_of(
        {"loss": learning(rows, seed=seed), "precision_running": metric}, present={"precision_running": there}
    )


def runaway(seed: int = 0) -> Batch:
    """Fall ever faster below zero, as a cross-entropy of labels beyond 1 does."""
    row = np.arange(300)
    return batch_of({"loss": 0.5 - 2e-4 * row**2 - 0.01 * row + 0.05 * _noise(seed, 300)})


def stuck_scale(seed: int = 0) -> Batch:
    """Skip every tenth update, whenever the scale tries 2 again, and learn nothing."""
    rows = 800
    row = np.arange(rows)
    scale = np.where(row % 10 > 5, 1.0, 2.0)
    skipped = 1.0 * (row % 10 == 5)
    return batch_of({"loss": 0.6 + 0.03 * _noise(seed, rows), "loss_scale": scale, "skipped": skipped})


def slow(seed: int = 0) -> Batch:
    """Take three times as long for a step from step 500 on."""
    rows = 1000
    time = 0.05 * np.exp(0.2 * _noise(seed, rows)) * np.where(np.arange(rows) >= 500, 3.0, 1.0)
    return batch_of({"loss": learning(rows, seed=seed), "step_time_s": time})


STUCK: dict[str, tuple[str, Callable[[int], Batch]]] = {
    maker.__name__: (kind, maker)
    for kind, maker in (
        ("plateau", never_learning), ("plateau", guessing), ("silent_constant", no_gradient),
        ("silent_constant", printed_zero), ("oscillation", alternating), ("oscillation", bouncing_in_noise),
        ("oscillation", restless),
        ("overfitting", overfitting), ("metric_nonfinite", bad_metric), ("runaway_negative_loss", runaway),
        ("loss_scale_stuck_low", stuck_scale), ("slow_steps", slow),
    )
}  # fmt: skip


def slow_learner(seed: int = 0) -> Batch:
    """Come down by a fifth of its noise in a hundred rows."""
    return batch_of({"loss": 2.0 - 4e-4 * np.arange(1500) + 0.2 * _noise(seed, 1500)})


def converged(seed: int = 0) -> Batch:
    """Learn, and stay on its floor for long."""
    return batch_of({"loss": learning(3000, seed=seed)})


def warming_up(seed: int = 0) -> Batch:
    """Learn nothing yet while the learning rate warms up over 500 steps, then learn."""
    row = np.arange(1000)
    loss = 2.5 - 2.0 * np.clip((row - 500) / 300, 0, 1) + 0.05 * _noise(seed, 1000)
    return batch_of({"loss": loss, "learning_rate": 1e-3 * np.minimum((row + 1) / 500, 1)})


def policy_gradient(seed: int = 0) -> Batch:
    """Scatter around zero, which says nothing about learning."""
    return batch_of({"loss": np.random.default_rng(seed).standard_t(3, size=1500)})


def adversaries(seed: int = 0) -> Batch:
    """Wander around ln 2 without a trend, as a generator's loss does."""
    rng = np.random.default_rng(seed)
    walk = np.cumsum(0.01 * rng.normal(size=1500))
    return batch_of({"loss": 0.69 + walk + 0.02 * rng.normal(size=1500)})


def hinge(seed: int = 0) -> Batch:
    """Learn a margin: loss and gradient come down to exactly 0."""
    row = np.arange(400)
    loss = np.maximum(1.0 - row / 150 + 0.02 * _noise(seed, 400), 0.0)
    loss[160:] = 0.0
    return batch_of({"loss": loss, "grad_norm": np.where(loss > 0, 1.0, 0.0)})


def two_losses(seed: int = 0) -> Batch:
    """Log two losses in turn, both falling."""
    row = np.arange(800)
    return batch_of({"loss": learning(800, noise=0.01, seed=seed) * np.where(row % 2, 1.0, 0.5)})


def imbalanced(seed: int = 0) -> Batch:
    """Cost much more in every twentieth batch."""
    rng = np.random.default_rng(seed)
    loss = learning(1500, start=0.7, floor=0.02, seed=seed)
    return batch_of({"loss": loss + (rng.random(1500) < 0.05) * rng.uniform(0.3, 2, 1500)})


def growing_noise(seed: int = 0) -> Batch:
    """Scatter three times as much from step 400 on, without any rhythm."""
    loss = 0.3 + np.exp(-np.arange(2400) / 60) + 0.02 * _noise(seed, 2400)
    loss[400:] += 0.06 * _noise(seed + 100, 2000)
    return batch_of({"loss": loss})


def constant_gap(seed: int = 0) -> Batch:
    """Validate noisily, always worse than training, without turning."""
    return validation_of(
        lambda epoch: 0.1 + 2 * math.exp(-epoch / 4), lambda epoch: 0.6 + 2 * math.exp(-epoch / 4), seed,
        noise=0.03,
    )  # fmt: skip


def noisy_validation(seed: int = 0) -> Batch:
    """Validate on few samples, on one level, while training falls."""
    return validation_of(lambda epoch: 0.1 + 2 * math.exp(-epoch / 4), lambda _: 0.8, seed, noise=0.05)


def rising_together(seed: int = 0) -> Batch:
    """Rise in training and in validation: a harder task, not overfitting."""

    def level(epoch: int) -> float:
        return 0.5 + 0.02 * (epoch - 6) ** 2

    return validation_of(level, level, seed)


def metric_of_a_bad_batch(seed: int = 0) -> Batch:
    """Have one NaN loss that the scaler kept out; the running metric is spoiled until the epoch ends."""
    row = np.arange(200)
    loss = np.where(row == 99, NAN, learning(200, seed=seed))
    metric = np.where((row >= 99) & (row < 150), NAN, 0.8)
    return batch_of(
        {"loss": loss, "accuracy_running": metric, "loss_scale": np.full(200, 1024.0),
         "skipped": 1.0 * (row == 99)},
        present={"accuracy_running": row % 10 == 9},
    )  # fmt: skip


def likelihood(seed: int = 0) -> Batch:
    """Fall evenly through zero and slow down, as a negative log-likelihood does."""
    row = np.arange(1000)
    return batch_of({"loss": 1.4 - 5 * (1 - np.exp(-row / 300)) + 0.1 * _noise(seed, 1000)})


def density(seed: int = 0) -> Batch:
    """Fall from 1 to -20 and slow down all the way, as the likelihood of a normalizing flow does."""
    row = np.arange(1500)
    return batch_of({"loss": 1.0 - 21.0 * (1 - np.exp(-row / 500)) + 0.3 * _noise(seed, 1500)})


def low_but_learning(seed: int = 0) -> Batch:
    """Skip at a scale of 2 now and then, and learn."""
    row = np.arange(1200)
    scale = np.where(row % 10 > 5, 1.0, 2.0)
    loss = 2.5 - row / 600 + 0.03 * _noise(seed, 1200)
    return batch_of({"loss": loss, "loss_scale": scale, "skipped": 1.0 * (row % 10 == 5)})


def checkpoints(seed: int = 0) -> Batch:
    """Compile slowly, and take long for every tenth step."""
    row = np.arange(1000)
    time = 0.05 * np.exp(0.3 * _noise(seed, 1000)) * np.where(row % 10 == 9, 20.0, 1.0)
    return batch_of({"loss": learning(1000, seed=seed), "step_time_s": np.where(row < 5, 3.0, time)})


TWINS: dict[str, tuple[str, Callable[[int], Batch]]] = {
    maker.__name__: (kind, maker)
    for kind, maker in (
        ("plateau", slow_learner), ("plateau", converged), ("plateau", warming_up),
        ("plateau", policy_gradient), ("plateau", adversaries), ("silent_constant", hinge),
        ("oscillation", two_losses), ("oscillation", imbalanced), ("oscillation", growing_noise),
        ("overfitting", constant_gap),
        ("overfitting", noisy_validation),
        ("overfitting", rising_together), ("metric_nonfinite", metric_of_a_bad_batch),
        ("runaway_negative_loss", likelihood), ("runaway_negative_loss", density),
        ("loss_scale_stuck_low", low_but_learning),
        ("slow_steps", checkpoints),
    )
}  # fmt: skip
