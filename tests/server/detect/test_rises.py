"""Rises of the loss: where they began, those still below the band, and what the first rows give away."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.msgpack import encode

from traces import batch_of
from trainvitals.wire import FloatArray, Hello
from trainvitals_server.batch import Batch
from trainvitals_server.detect.loss import LossFold
from trainvitals_server.detect.trail import MAX_LEVELS, Trail
from trainvitals_server.fold import RunFold, scan

TURN = 1500


def slow(seed: int, tau: float, top: float, *, rows: int = 3000) -> FloatArray:
    """Return a loss that falls from 5 to 0.1 and from `TURN` on grows by e in `tau` rows, up to `top`."""
    rng, row = np.random.default_rng(seed), np.arange(rows)
    loss = 0.1 + 4.9 * np.exp(-row / 200)
    loss += np.where(row > TURN, np.minimum(1e-3 * np.expm1(np.maximum(row - TURN, 0) / tau), top), 0)
    return np.asarray(loss * (1 + 0.05 * rng.normal(size=rows)))


def of_loss(loss: FloatArray | list[float], steps: range | list[int] | None = None) -> Batch:
    return batch_of({"loss": loss}, steps=steps)


def loud(batch: Batch) -> list[tuple[str, str]]:
    return [(item.kind, item.severity) for item in scan([batch]) if item.severity != "info"]


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_rise_to_eleven_times_the_best_is_a_warning_though_the_start_was_worse(seed: int) -> None:
    (incident,) = scan([of_loss(slow(seed, 150, 1.0))])
    assert (incident.kind, incident.severity) == ("gradual_divergence", "warning")
    assert TURN < incident.onset_step < incident.detected_step < TURN + 1000
    assert "gradually since step" in incident.verdict


@pytest.mark.parametrize("seed", range(5))
def test_where_it_goes_on_the_warning_becomes_critical_and_stays_one_incident(seed: int) -> None:
    (incident,) = scan([of_loss(slow(seed, 100, 1e6))])
    assert [item.severity for item in incident.findings[:2]] == ["warning", "critical"]
    assert {item.onset_step for item in incident.findings} == {incident.onset_step}


@pytest.mark.parametrize("seed", range(5))
def test_where_it_comes_down_again_the_warning_is_withdrawn(seed: int) -> None:
    loss = slow(seed, 150, 1.0)
    (incident,) = scan([of_loss(np.concatenate([loss, loss[1000:1400]]))])
    assert incident.state == "withdrawn"


@pytest.mark.parametrize("seed", range(5))
def test_a_nan_at_its_end_is_that_of_the_rise(seed: int) -> None:
    loss = np.append(slow(seed, 150, 1.0), math.nan)
    (incident,) = scan([of_loss(loss)])
    assert (incident.kind, incident.nonfinite_step, incident.severity) == (
        "gradual_divergence", len(loss) - 1, "critical",
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_an_even_climb_below_the_band_is_none(seed: int) -> None:
    loss = slow(seed, 1e9, 0.0)
    loss += np.clip((np.arange(3000) - TURN) / 1500, 0, 1)
    assert loud(of_loss(loss)) == []


@pytest.mark.parametrize("cut", [1, 7, 100])
def test_rows_in_pieces_with_restarts_between_tell_the_same_of_a_rise_below_the_band(cut: int) -> None:
    loss = slow(0, 150, 1.0)
    batch = of_loss(np.concatenate([loss, loss[1000:1400], [math.nan]]))
    fold = RunFold("scan")
    fold.hello(Hello(run_id="scan", session_id="scan"))
    for start in range(0, len(batch), cut):
        fold.rows(0, "scan", batch.slice(start, min(start + cut, len(batch))))
        if start % (30 * cut) == 0:
            fold = RunFold.load(fold.dump())
    whole = scan([batch])
    assert [item.kind for item in whole] == ["gradual_divergence", "sudden_nan"]
    assert [encode(item) for item in fold.incidents()] == [encode(item) for item in whole]


@pytest.mark.parametrize("seed", range(20))
def test_a_term_that_is_annealed_in_is_none(seed: int) -> None:
    rng, row = np.random.default_rng(seed), np.arange(1500)
    annealed = rng.uniform(0.2, 1.2) / (1 + np.exp(-rng.uniform(5, 40) / 1500 * (row - 900)))
    loss = (0.3 + 2 * np.exp(-row / 120) + annealed) * (1 + 0.03 * rng.normal(size=1500))
    assert loud(of_loss(loss)) == []


@pytest.mark.parametrize(("tau", "rows"), [(50, 150), (100, 300)])
def test_a_divergence_began_where_the_loss_turned_not_where_it_left_its_band(tau: int, rows: int) -> None:
    (incident,) = scan([of_loss(slow(0, tau, 1e6))])
    assert TURN < incident.onset_step <= TURN + rows


def test_a_jump_began_where_it_jumped() -> None:
    loss = slow(0, 1e9, 0.0)
    loss[2000:] = 50 * 2.0 ** np.arange(1000).clip(0, 60)
    (incident,) = scan([of_loss(loss)])
    assert incident.onset_step == 2000


def test_levels_of_a_long_run_are_thinned_and_a_turn_is_found_all_the_same() -> None:
    trail = Trail()
    for block in range(5000):
        trail.add(16 * block, max(1.0, 0.05 * (block - 4900)))
    assert len(trail.levels) <= MAX_LEVELS
    assert trail.turn(5.5, 0.01) == pytest.approx(16 * 4926, abs=16 * 8)


def test_nan_after_a_harder_task_has_begun_is_sudden() -> None:
    rng = np.random.default_rng(0)
    loss = 0.2 + 2.0 * np.exp(-np.arange(400) / 80) + 0.02 * rng.normal(size=400)
    loss[300:] += 1.6 * np.exp(-np.arange(100) / 40)
    (*_, incident) = scan([of_loss(np.append(loss[:306], math.nan))])
    assert incident.kind == "sudden_nan"


def test_a_hundred_times_above_the_start_within_twenty_updates_is_a_blow_up_however_even_the_rise() -> None:
    (incident,) = scan([of_loss([0.34, 0.335, 14.0, 55.0, 200.0])])
    assert (incident.kind, incident.severity) == ("immediate_blowup", "critical")


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_first_rows_that_are_alike_as_logged_hide_no_blow_up(digits: int) -> None:
    loss = np.round([1.618, 1.6179, 6.6, 14.9, 24.1, 13.3, 1139.0, 65.6, 9.7, 21.6, 337.6], digits)
    assert loud(of_loss(loss)) == [("immediate_blowup", "critical")]


def test_a_run_that_left_its_first_row_before_the_second_was_logged_is_worth_a_warning() -> None:
    high = 40 * np.exp(0.25 * np.random.default_rng(0).normal(size=200))
    (incident, *_) = scan([of_loss([2.3, *high.tolist()], steps=range(0, 1005, 5))])
    assert (incident.kind, incident.onset_step, incident.detected_step) == ("immediate_blowup", 5, 100)
    assert incident.severity == "warning"  # the first row may as well be the sum of fewer batches


@pytest.mark.parametrize("first", [0.0, -0.01, 1e-4])
def test_a_loss_that_happens_to_begin_near_zero_is_no_blow_up(first: float) -> None:
    loss = 0.9 * np.exp(0.1 * np.random.default_rng(0).normal(size=200))
    assert loud(of_loss([first, *loss.tolist()])) == []


@pytest.mark.parametrize("seed", range(20))
def test_one_lucky_first_row_of_a_noisy_run_is_no_blow_up(seed: int) -> None:
    loss = np.random.default_rng(seed).gamma(1.5, size=200)
    assert loud(of_loss([0.02, *loss.tolist()])) == []


def test_a_loss_that_is_mostly_zero_wakes_nobody_when_it_is_not() -> None:
    loss = np.zeros(60)
    loss[[20, 36, 40, 41, 55]] = [0.06, 0.05, 0.05, 0.03, 0.07]
    assert loud(of_loss(loss)) == []


@pytest.mark.parametrize("seed", range(8))
def test_one_of_two_losses_that_climbs_out_of_its_noise_and_levels_off_wakes_nobody(seed: int) -> None:
    rng = np.random.default_rng(seed)
    risen = -np.expm1(-np.maximum(np.arange(500) - 100, 0) / 100)
    loss = (0.7 + 8.0 * risen) * np.exp(0.1 * rng.normal(size=500))
    assert "critical" not in {severity for _, severity in loud(of_loss(loss))}


def test_an_excerpt_that_is_back_two_rows_far_apart_is_back() -> None:
    steps = [*range(29020, 29100, 10), 33000, 43000]
    loss = [2.78, 2.77, 2.77, 7.3, 8.7, 7.6, 7.2, 6.8, 2.72, 2.64]
    (spike,) = LossFold().feed(of_loss(loss, steps=steps))
    assert (spike.kind, spike.facts["outcome"], spike.facts["peak"]) == ("loss_spike", "recovered", 8.7)


def test_an_infinite_norm_needs_no_second_one_where_the_loss_diverges() -> None:
    loss = [0.34, 0.335, 14.0, 55.0, 200.0, 1e4, 1e6, 2e26]
    norm = [8.5, 8.6, 490.0, 130.0, 1800.0, 1e4, 3e6, math.inf]
    (incident,) = scan([batch_of({"loss": loss, "grad_norm": norm})])
    assert [item.kind for item in incident.findings][-1] == "nonfinite_gradient"
    assert (incident.nonfinite_step, incident.lead_steps) == (7, 7 - incident.detected_step)


def test_once_the_loss_is_back_an_infinite_norm_needs_a_second_one_again() -> None:
    rng = np.random.default_rng(0)
    loss = 0.2 + 2.0 * np.exp(-np.arange(300) / 40) + 0.02 * rng.normal(size=300)
    loss[150:156] = 40.0 * 3.0 ** np.arange(6)
    norm = np.ones(300)
    norm[250] = math.inf
    first, second = scan([batch_of({"loss": loss, "grad_norm": norm})])
    assert (first.severity, first.state, first.nonfinite_step) == ("critical", "withdrawn", None)
    assert (second.kind, second.severity) == ("transient_overflow", "info")


def test_a_divergence_that_outlives_a_nan_is_not_the_reason_of_the_next_one() -> None:
    rng = np.random.default_rng(0)
    loss = 0.2 + 2.0 * np.exp(-np.arange(600) / 40) + 0.02 * rng.normal(size=600)
    loss[300:] += 60.0 * (1 - 0.7 ** np.arange(300))
    loss[[340, 400, 460, 520]] = math.nan
    kinds = [item.kind for item in scan([of_loss(loss)]) if item.severity != "info"]
    assert len(kinds) == 2
    assert kinds[1] == "sudden_nan"
