"""The detectors one by one: each on the rows it is made for, and on the rows it must not mistake for them."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from traces import batch_of, collapse, epsilon, exploding, healthy_half, learning, spike
from trainvitals_server.detect.excursion import Excursion, rows_needed
from trainvitals_server.detect.forecast import (
    HALF_LIMIT_LOG10,
    rows_to_limit,
    steps_to_limit,
    steps_to_scale,
)
from trainvitals_server.detect.gradient import GradientFold
from trainvitals_server.detect.loss import LossFold
from trainvitals_server.detect.overflow import OverflowFold
from trainvitals_server.detect.rates import RateFold
from trainvitals_server.detect.stats import BLOCK, LogLevel, LossBand
from trainvitals_server.detect.validation import ValidationFold
from trainvitals_server.detect.young import blown_up_since


def kinds(findings: list[object]) -> list[str]:
    return [finding.kind for finding in findings]  # type: ignore[attr-defined]


class TestBand:
    def test_height_one_is_as_bad_as_the_start(self) -> None:
        band = LossBand()
        for value in np.linspace(3.0, 1.0, 200).tolist():
            band.accept(value)
        assert band.height(band.start) == pytest.approx(1.0)

    def test_the_best_is_the_lowest_block_median(self) -> None:
        band, values = LossBand(), learning(160)
        for value in values.tolist():
            band.accept(value)
        oracle = min(np.median(values[start : start + BLOCK]) for start in range(48, 160, BLOCK))
        assert band.best == pytest.approx(min(oracle, band.best))
        assert band.best <= oracle

    def test_noise_is_that_of_the_rows_not_of_the_trend(self) -> None:
        rng = np.random.default_rng(0)
        band = LossBand()
        for value in (5 - 0.001 * np.arange(2000) + 0.1 * rng.normal(size=2000)).tolist():
            band.accept(value)
        assert band.noise == pytest.approx(0.1, rel=0.3)

    def test_a_constant_loss_has_no_range_and_any_rise_is_infinite(self) -> None:
        band = LossBand()
        for _ in range(100):
            band.accept(0.0)
        assert (band.height(0.0), band.height(1.0)) == (0.0, math.inf)

    def test_the_level_of_a_gradient_never_falls_below_its_first_size(self) -> None:
        level = LogLevel()
        for value in np.linspace(2, -8, 2000).tolist():
            level.take([value])
        assert level.typical == pytest.approx(2.0, abs=0.1)


class TestYoung:
    def test_rises_that_multiply_are_a_blow_up(self) -> None:
        assert blown_up_since([369.7, 1120, 4344, 19580, 88000]) == 1

    def test_four_values_in_ascending_order_are_chance(self) -> None:
        assert blown_up_since([0.025, 0.26, 0.97, 4.2]) is None

    def test_a_value_beyond_all_proportion_is_one_at_once(self) -> None:
        assert blown_up_since([2.3, 1.7e9]) == 1

    def test_a_restless_start_is_none(self) -> None:
        assert blown_up_since([1.2, 1.7, 1.6, 2.1, 1.8]) is None

    def test_noise_around_zero_is_none(self) -> None:
        assert blown_up_since([0.01, 1.0, -0.5, 2.0]) is None


class TestForecast:
    def test_geometric_growth_ends_where_float32_ends(self) -> None:
        rises = [10.0**power for power in range(1, 5)]
        assert rows_to_limit(rises) == math.ceil(38.53 - 4)

    def test_growth_that_grows_ends_sooner(self) -> None:
        assert rows_to_limit([1, 1e1, 1e3, 1e7]) < 5

    def test_a_loss_that_falls_has_no_forecast(self) -> None:
        assert rows_to_limit([5.0, 4.0]) == math.inf
        assert steps_to_limit(range(10), [10.0 - step for step in range(10)]) is None

    def test_even_growth_is_forecast_to_the_step_where_the_format_ends(self) -> None:
        ahead = steps_to_limit(range(0, 400, 10), [math.exp(0.1 * step) for step in range(0, 400, 10)])
        assert ahead is not None
        true = 38.53 / math.log10(math.exp(0.1)) - 390
        assert ahead.likely == pytest.approx(true, rel=1e-6)
        assert ahead.low < true < ahead.high < 1.2 * true

    def test_noise_makes_the_range_wider(self) -> None:
        noise = np.exp(0.5 * np.random.default_rng(0).normal(size=24))
        rises = 1.2 ** np.arange(24)
        calm, noisy = (
            steps_to_limit(range(24), rises.tolist()),
            steps_to_limit(range(24), (rises * noise).tolist()),
        )
        assert calm is not None
        assert noisy is not None
        assert noisy.high - noisy.low > 2 * (calm.high - calm.low)

    def test_growth_that_gets_faster_may_end_sooner(self) -> None:
        even = steps_to_limit(range(20), [1.3**step for step in range(20)])
        faster = steps_to_limit(range(20), [1.3 ** (step**2 / 19) for step in range(20)])
        assert even is not None
        assert faster is not None
        assert faster.low / faster.likely < 0.8 * even.low / even.likely

    def test_half_precision_ends_sooner(self) -> None:
        rises = [2.0**step for step in range(10)]
        half, single = steps_to_limit(range(10), rises, HALF_LIMIT_LOG10), steps_to_limit(range(10), rises)
        assert half is not None
        assert single is not None
        assert half.likely == pytest.approx(16 - 9, abs=0.01)
        assert single.likely == pytest.approx(128 - 9, abs=0.1)

    def test_a_scale_that_halves_every_other_step_takes_two_steps_a_bit(self) -> None:
        assert steps_to_scale(1024.0, 0.5, 0) == 20
        assert steps_to_scale(1024.0, 0.5) == 318
        assert steps_to_scale(0.0, 0.5) == 0


class TestExcursion:
    @staticmethod
    def judged(heights: list[float], *, is_young: bool = False) -> str | None:
        """Return the gravest judgement that the rows give away, one after the other."""
        out = Excursion(onset_step=0)
        judgements: set[str | None] = set()
        for step, height in enumerate(heights):
            out.add(step, height, height, is_inside=height < 0.5)
            judgements.add(out.judge(needed=3, tallest=0.0, is_young=is_young))
        return next((one for one in ("critical", "warning") if one in judgements), None)

    def test_one_high_row_is_nothing_yet(self) -> None:
        assert self.judged([70.0]) is None

    def test_three_severe_rows_that_rise_are_critical(self) -> None:
        assert self.judged([3.5, 4.0, 6.5]) == "critical"

    def test_three_rows_on_another_level_are_another_task(self) -> None:
        assert self.judged([5.0, 6.0, 5.5]) is None

    def test_a_level_far_above_everything_is_critical_once_it_does_not_become_easier(self) -> None:
        assert self.judged([15.0, 16.0, 15.5]) is None
        assert self.judged([15.0, 16.0, 15.5] * 7) == "warning"
        assert self.judged([15.0, 16.0, 15.5] * 14) == "critical"
        assert self.judged([30 * 0.98**row for row in range(60)]) is None

    def test_three_rows_beyond_any_task_are_critical_even_on_a_level(self) -> None:
        assert self.judged([150.0, 160.0, 155.0]) == "critical"

    def test_three_rows_far_above_a_young_run_are_critical_even_on_a_level(self) -> None:
        assert self.judged([15.0, 16.0, 15.5], is_young=True) == "critical"

    def test_a_level_is_critical_where_the_loss_scale_gave_way(self) -> None:
        out = Excursion(onset_step=0, scale_before=65536.0)
        for step, height in enumerate([5.0, 6.0, 5.5]):
            out.add(step, height, height, is_inside=False)
            out.note_scale(8192.0)
        assert out.judge(needed=3, tallest=0.0) == "critical"

    def test_a_spike_that_only_falls_gets_its_time(self) -> None:
        assert self.judged([9.0, 7.0, 5.0, 3.5, 2.0]) is None

    def test_a_leap_upon_a_leap_is_critical_at_once(self) -> None:
        assert self.judged([4.0, 40.0]) == "critical"

    def test_a_slow_rise_above_the_start_is_a_warning(self) -> None:
        assert self.judged([0.9, 1.0, 1.1, 1.3, 1.5, 1.6]) == "warning"

    def test_a_long_stay_at_the_start_is_a_warning(self) -> None:
        assert self.judged([1.0] * 19) is None
        assert self.judged([1.0] * 20) == "warning"

    def test_a_run_used_to_high_rows_needs_more_of_them(self) -> None:
        assert rows_needed(0, 1000) == 3
        assert rows_needed(100, 1000) == 6  # log(1e-6) / log(101 / 1500) is 5.1
        assert rows_needed(10**6, 1) == 20


class TestLoss:
    def test_a_spike_is_told_once_it_is_over(self) -> None:
        (finding,) = LossFold().feed(spike())
        assert (finding.kind, finding.severity, finding.onset_step) == ("loss_spike", "info", 200)
        assert finding.facts["outcome"] == "recovered"

    def test_a_jump_that_stays_halfway_is_a_warning(self) -> None:
        loss = learning(600)
        loss[300:] += 1.4
        (finding,) = LossFold().feed(batch_of({"loss": loss}))
        assert (finding.kind, finding.severity, finding.onset_step) == ("loss_spike", "warning", 300)

    def test_the_state_is_the_same_row_by_row(self) -> None:
        batch = batch_of({"loss": np.abs(np.random.default_rng(0).standard_t(2, size=9000))})
        whole, rows = LossFold(), LossFold()
        whole.feed(batch)
        for row in range(len(batch)):
            rows.feed(batch.slice(row, row + 1))
        assert msgspec.msgpack.encode(rows) == msgspec.msgpack.encode(whole)

    def test_an_open_divergence_is_forecast_anew_as_it_goes_on(self) -> None:
        loss = learning(900)
        loss[300:] += 0.1 * np.exp(0.05 * np.arange(600))
        told = [item for item in LossFold().feed(batch_of({"loss": loss})) if item.severity == "critical"]
        assert [finding.phase for finding in told] == ["open", "update", "update", "update"]
        end = 300 + (38.53 + 1) / 0.05 * math.log(10)
        for finding in told:
            low, high = (finding.facts[f"steps_to_float32_end_{side}"] for side in ("low", "high"))
            assert isinstance(low, float)
            assert isinstance(high, float)
            assert low <= end - finding.detected_step <= high

    def test_missing_cells_are_no_values(self) -> None:
        loss = learning(400)
        there = np.arange(400) % 3 == 0
        assert LossFold().feed(batch_of({"loss": np.where(there, loss, 1e9)}, present={"loss": there})) == []

    def test_rows_a_thousand_steps_apart_are_judged_alike(self) -> None:
        loss = np.concatenate([learning(100), np.full(10, 500.0)])
        (finding,) = LossFold().feed(batch_of({"loss": loss}, steps=range(5000, 115000, 1000)))
        assert (finding.severity, finding.onset_step) == ("critical", 105000)

    def test_nan_after_a_single_high_row_is_sudden(self) -> None:
        loss = np.concatenate([learning(100), [500.0, math.nan]])
        (finding,) = LossFold().feed(batch_of({"loss": loss}))
        assert (finding.kind, finding.onset_step) == ("sudden_nan", 101)

    def test_nan_after_a_rise_is_divergence(self) -> None:
        loss = np.concatenate([learning(100), [2.0, 2.6, math.nan]])
        (finding,) = LossFold().feed(batch_of({"loss": loss}))
        assert (finding.kind, finding.onset_step, finding.nonfinite_step) == ("fast_divergence", 100, 102)


class TestScaler:
    def test_a_normal_start_and_a_skip_after_each_doubling_are_notes(self) -> None:
        assert {finding.severity for finding in OverflowFold().feed(healthy_half())} == {"info"}

    def test_the_bottom_of_the_scale_is_a_collapse(self) -> None:
        found = [finding for finding in OverflowFold().feed(collapse()) if finding.severity == "critical"]
        assert [(finding.kind, finding.detected_step) for finding in found] == [("loss_scale_collapse", 15)]

    def test_a_collapse_tells_when_the_scale_is_one_and_zero(self) -> None:
        (finding,) = [item for item in OverflowFold().feed(collapse()) if item.severity == "critical"]
        assert finding.detected_step == 15
        assert finding.facts["loss_scale"] == 1.0
        assert (finding.facts["steps_to_scale_one"], finding.facts["steps_to_scale_zero"]) == (0, 149)

    def test_a_start_from_two_to_the_32_is_given_its_time(self) -> None:
        rows = 60
        skipped = np.arange(rows) < 19
        scale = np.where(skipped, 2.0 ** (32 - np.arange(rows)), 2.0**13)
        batch = batch_of({"loss_scale": scale, "skipped": 1.0 * skipped, "grad_norm": np.ones(rows)})
        assert {finding.severity for finding in OverflowFold().feed(batch)} == {"info"}

    def test_half_of_the_updates_lost_is_a_collapse(self) -> None:
        rows = 200
        skipped = (np.arange(rows) >= 100) & (np.arange(rows) % 2 == 0)
        batch = batch_of(
            {"loss_scale": np.full(rows, 1024.0), "skipped": 1.0 * skipped, "grad_norm": np.ones(rows)}
        )
        assert "loss_scale_collapse" in kinds(list(OverflowFold().feed(batch)))

    def test_updates_that_are_applied_again_end_the_collapse(self) -> None:
        rows = 200
        skipped = (np.arange(rows) >= 50) & (np.arange(rows) < 70)
        batch = batch_of(
            {"loss_scale": np.full(rows, 1024.0), "skipped": 1.0 * skipped, "grad_norm": np.ones(rows)}
        )
        collapsed = [item for item in OverflowFold().feed(batch) if item.kind == "loss_scale_collapse"]
        assert [finding.phase for finding in collapsed] == ["open", "resolve"]

    def test_one_infinite_norm_between_finite_rows_is_the_norms_own_overflow(self) -> None:
        norm = np.ones(50)
        norm[20] = math.inf
        (finding,) = OverflowFold().feed(batch_of({"grad_norm": norm}))
        assert (finding.kind, finding.severity, finding.detected_step) == ("transient_overflow", "info", 21)

    def test_two_infinite_norms_are_non_finite_gradients(self) -> None:
        norm = np.ones(50)
        norm[20:] = math.inf
        (finding,) = OverflowFold().feed(batch_of({"grad_norm": norm}))
        assert (finding.kind, finding.onset_step, finding.detected_step) == ("nonfinite_gradient", 20, 21)


class TestGradient:
    def test_ten_orders_of_magnitude_are_an_explosion(self) -> None:
        (finding,) = GradientFold().feed(exploding())
        assert (finding.kind, finding.onset_step, finding.detected_step) == ("exploding_gradient", 300, 302)

    def test_two_wild_rows_are_none(self) -> None:
        norm = np.ones(100)
        norm[50:52] = 1e12
        assert GradientFold().feed(batch_of({"grad_norm": norm})) == []

    def test_a_norm_that_multiplies_row_by_row_explodes_before_its_level_is_known(self) -> None:
        norm = [0.17, 0.24, 0.95, 2.4, 15.9, 145.0, 960.0]
        (finding,) = GradientFold().feed(batch_of({"grad_norm": norm}))
        assert (finding.kind, finding.onset_step, finding.detected_step) == ("exploding_gradient", 3, 6)

    def test_an_explosion_that_is_over_is_withdrawn_and_the_next_one_told(self) -> None:
        norm = np.exp(0.3 * np.random.default_rng(0).normal(size=400))
        norm[100:110] *= 1e8
        norm[300:310] *= 1e8
        found = GradientFold().feed(batch_of({"grad_norm": norm}))
        told = [(finding.phase, finding.onset_step) for finding in found]
        assert told == [("open", 100), ("withdraw", 100), ("open", 300), ("withdraw", 300)]

    def test_a_jump_out_of_round_off_is_epsilon(self) -> None:
        (finding,) = GradientFold().feed(epsilon())
        assert (finding.kind, finding.onset_step) == ("optimizer_epsilon", 900)

    def test_a_jump_without_a_decay_before_it_is_not(self) -> None:
        norm = np.exp(0.1 * np.random.default_rng(0).normal(size=300))
        norm[200] = 5e3
        assert GradientFold().feed(batch_of({"grad_norm": norm})) == []


def test_a_non_finite_validation_column_is_told_once() -> None:
    batch = batch_of({"val_loss": [1.0, math.nan, math.nan]})
    (finding,) = ValidationFold().feed(batch)
    assert (finding.kind, finding.onset_step) == ("validation_nonfinite", 1)


def test_a_missing_validation_value_is_not_nan() -> None:
    batch = batch_of({"val_loss": [1.0, math.nan]}, present={"val_loss": [True, False]})
    assert ValidationFold().feed(batch) == []


def test_the_rate_remembers_its_last_rise() -> None:
    rates = RateFold()
    rates.feed(batch_of({"learning_rate": [0.1, 0.01, 0.1, 0.05]}))
    summary = rates.summary()
    assert (summary.first, summary.last, summary.raised_step, summary.raised_from) == (0.1, 0.05, 2, 0.01)
