"""Gradients that are summed up for ever are told from those of any other run."""

from __future__ import annotations

import numpy as np
import pytest

from failures import FAILING, failing
from generators import HEALTHY, healthy
from traces import batch_of
from trainvitals.wire import Environment, FloatArray
from trainvitals_server.detect.origin import MAX_ROWS, Origin
from trainvitals_server.fold import scan
from trainvitals_server.piling import Pile, pile_of

LOOP = Environment(optimizer="SGD")  # of one's own: no loss is known
CAUSE = "gradient_accumulator_not_reset"
SEEDS = range(10)


def descent(
    rate: float, rows: int, *, keeps_sums: bool, curvature: float = 1.0
) -> tuple[FloatArray, FloatArray]:
    """Return losses and sizes of what is applied: a parabola, descended by its gradients or their sum."""
    rng = np.random.default_rng(0)
    place, total = 10.0, 0.0
    losses, norms = np.zeros(rows), np.zeros(rows)
    for row in range(rows):
        losses[row] = curvature * place**2 / 2
        gradient = curvature * place * (1 + 0.1 * rng.normal())
        total = total + gradient if keeps_sums else gradient
        norms[row] = abs(total)
        place -= rate * total
    return losses, norms


def origin_of(losses: FloatArray, norms: FloatArray, stride: int = 1) -> Origin:
    origin = Origin()
    origin.feed(
        batch_of({"loss": losses, "grad_norm": norms}, steps=[stride * row for row in range(len(losses))])
    )
    return origin


def test_a_sum_that_is_never_reset_piles_up() -> None:
    pile = pile_of(origin_of(*descent(0.002, 60, keeps_sums=True)))
    assert isinstance(pile, Pile)
    assert pile.first_step == 0
    assert pile.times > 10


@pytest.mark.parametrize("rate", [0.002, 0.1, 1.0, 2.2, 3.0])
def test_plain_descent_and_plain_divergence_do_not(rate: float) -> None:
    assert pile_of(origin_of(*descent(rate, 60, keeps_sums=False))) is None


def test_gradients_that_grow_with_the_loss_do_not() -> None:
    rows = 1 + np.arange(40.0)
    assert pile_of(origin_of(rows**2, rows)) is None


def test_accumulation_that_is_reset_does_not() -> None:
    saw = np.tile([1.0, 2.0, 3.0, 4.0], 10)
    assert pile_of(origin_of(np.linspace(3, 2, 40), saw)) is None


def test_a_norm_that_rises_at_the_start_but_not_with_the_step_does_not() -> None:
    norms = 1 + 9 * (1 - np.exp(-np.arange(40) / 2))  # of a last layer that starts at 0
    assert pile_of(origin_of(np.linspace(3, 2, 40), norms)) is None


def test_only_the_first_rows_are_kept_however_they_come() -> None:
    losses, norms = descent(0.002, 60, keeps_sums=True)
    whole, pieces = origin_of(losses, norms), Origin()
    batch = batch_of({"loss": losses, "grad_norm": norms})
    for row in range(60):
        pieces.feed(batch.slice(row, row + 1))
    assert whole == pieces
    assert len(whole.rows) == MAX_ROWS


def told_causes(name: str, seed: int, *, is_healthy: bool) -> set[str]:
    batch = healthy(name, seed) if is_healthy else failing(name, seed).batch
    return {cause.cause for incident in scan([batch], environment=LOOP) for cause in incident.causes}


@pytest.mark.parametrize("name", HEALTHY)
def test_it_is_never_told_of_a_healthy_run(name: str) -> None:
    assert not any(CAUSE in told_causes(name, seed, is_healthy=True) for seed in SEEDS)


@pytest.mark.parametrize("name", FAILING)
def test_it_is_never_told_of_another_failure(name: str) -> None:
    assert not any(CAUSE in told_causes(name, seed, is_healthy=False) for seed in SEEDS)
