"""A gradient that explodes and comes back: what is told while it lasts, and of the loss once it is over."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.msgpack import encode

from traces import batch_of
from trainvitals.wire import Hello
from trainvitals_server.batch import Batch
from trainvitals_server.detect.gradient import GradientFold
from trainvitals_server.fold import RunFold, scan

NORMS = [0.2, 0.25, 0.8, 2.5, 14.0, 130.0, 900.0, 300.0, 400.0, 600.0, 0.3, 0.2, 0.15]
LOSSES = [2.4, 2.2, 2.22, 2.5, 2.24, 2.34, 5.0, 3.5, 3.2, 2.8, 2.21, 2.23, 2.1]
STEPS = [9000, *range(31000, 31009), 31040, 31041, 45000]  # as an excerpt is written down


def excerpt(norms: list[float] = NORMS, losses: list[float] = LOSSES, steps: list[int] = STEPS) -> Batch:
    return batch_of({"loss": losses, "grad_norm": norms}, steps=steps)


def long_run(seed: int, *, high_rows: int = 12, after: float = 2.0) -> Batch:
    rng = np.random.default_rng(seed)
    loss = 2.0 + np.exp(-np.arange(400) / 100) + 0.05 * rng.normal(size=400)
    norm = 0.3 * np.exp(0.3 * rng.normal(size=400))
    norm[300 : 300 + high_rows] = 0.3 * 3.0 ** np.minimum(np.arange(1, high_rows + 1), 9)
    loss[303 : 300 + high_rows] += 2.0
    loss[300 + high_rows :] += after - 2.0
    return batch_of({"loss": loss, "grad_norm": norm})


def test_an_excerpt_with_a_burst_that_is_back_is_a_spike_that_recovered_and_wakes_nobody() -> None:
    burst, spike = scan([excerpt()])
    assert (burst.kind, burst.severity, burst.state) == ("exploding_gradient", "warning", "withdrawn")
    assert (spike.kind, spike.severity, spike.state) == ("loss_spike", "info", "resolved")
    assert (spike.findings[0].facts["peak"], spike.findings[0].facts["peak_step"]) == (5.0, 31005)
    assert spike.verdict == "The loss jumped from about 2.22 to 5 at step 31005 and came back."


def test_three_rows_are_too_few_to_be_over_where_rows_come_as_before() -> None:
    burst, *others = scan([excerpt(steps=list(range(13)))])
    assert (burst.state, others) == ("open", [])


@pytest.mark.parametrize("seed", range(5))
def test_in_a_run_whose_level_is_known_a_burst_is_critical_until_it_is_back(seed: int) -> None:
    burst, spike = scan([long_run(seed)])
    assert (burst.kind, burst.severity, burst.state) == ("exploding_gradient", "critical", "withdrawn")
    assert (spike.kind, spike.state) == ("loss_spike", "resolved")


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_that_stays_where_it_jumped_to_has_not_recovered(seed: int) -> None:
    told = scan([long_run(seed, after=4.0)])
    assert "loss_spike" not in {item.kind for item in told if item.state == "resolved"}


def test_a_burst_that_leaves_the_loss_alone_is_no_spike_of_it() -> None:
    (burst,) = scan([excerpt(losses=[2.3] * 13)])
    assert burst.kind == "exploding_gradient"


def test_a_young_norm_that_comes_to_where_it_belongs_is_withdrawn() -> None:
    norm = np.concatenate([[1e-4, 1e-4], 1e-4 * 8.0 ** np.arange(1, 6), np.full(60, 3.0)])
    told = GradientFold().feed(batch_of({"grad_norm": norm, "loss": np.full(len(norm), 1.0)}))
    assert [(item.severity, item.phase) for item in told] == [("warning", "open"), ("critical", "withdraw")]
    assert "settled at 3" in told[1].evidence[0].text


@pytest.mark.parametrize("cut", [1, 5, 64])
def test_rows_in_pieces_with_restarts_between_tell_the_same_of_a_burst(cut: int) -> None:
    batch, fold = long_run(0), RunFold("scan")
    fold.hello(Hello(run_id="scan", session_id="scan"))
    for start in range(0, len(batch), cut):
        fold.rows(0, "scan", batch.slice(start, min(start + cut, len(batch))))
        if start % (9 * cut) == 0 or 300 < start < 330:
            fold = RunFold.load(fold.dump())
    assert [encode(item) for item in fold.incidents()] == [encode(item) for item in scan([batch])]
