"""Overfitting, metrics, runaway losses, stuck scales and slow steps, one by one."""

from __future__ import annotations

import numpy as np
import pytest

from stuck import bad_metric, likelihood, overfitting, runaway, slow, stuck_scale
from traces import NAN, batch_of, learning
from trainvitals.wire import Environment, Event, Hello
from trainvitals_server.batch import Batch
from trainvitals_server.detect.blocks import LOSS_BLOCK, Blocks
from trainvitals_server.detect.low_scale import LowScaleFold
from trainvitals_server.detect.metric import MetricFold
from trainvitals_server.detect.overfitting import OverfittingFold
from trainvitals_server.detect.runaway import RunawayFold
from trainvitals_server.detect.speed import SpeedFold
from trainvitals_server.finding import Finding
from trainvitals_server.fold import RunFold, scan


def low_scales(batch: Batch) -> list[Finding]:
    return LowScaleFold().feed(batch, Blocks(LOSS_BLOCK).cut(batch, "loss"))


class TestOverfitting:
    def test_it_began_at_the_best_validation(self) -> None:
        (finding,) = OverfittingFold().feed(overfitting())
        assert (finding.onset_step, finding.severity) == (349, "info")  # the last step of epoch 6

    def test_events_say_the_same_as_a_column(self) -> None:
        batch, fold = overfitting(), RunFold("run")
        fold.hello(Hello(run_id="run", session_id="a"))
        values = batch.columns["val_loss"]
        start = 0
        for row in np.flatnonzero(values.present).tolist():
            piece = batch.slice(start, row + 1)
            fold.rows(0, "a", batch_of({"loss": piece.columns["loss"].values}, steps=piece.steps.tolist()))
            data = {"epoch": row // 50, "val_loss": float(values.values[row])}
            fold.event(0, "a", Event(seq=row, step=row, kind="validation", data=data))
            start = row + 1
        (incident,), (column,) = fold.incidents(), scan([batch])
        assert (incident.kind, incident.onset_step, incident.detected_step) == (
            column.kind,
            column.onset_step,
            column.detected_step,
        )

    def test_a_new_best_validation_withdraws_it(self) -> None:
        fold, batch = OverfittingFold(), overfitting()
        fold.feed(batch)
        (finding,) = fold.event(2000, {"val_loss": 0.1})
        assert (finding.phase, finding.onset_step) == ("withdraw", 349)

    def test_validations_that_are_not_finite_are_another_matter(self) -> None:
        fold = OverfittingFold()
        fold.feed(batch_of({"loss": learning(100)}))
        assert [fold.event(step, {"val_loss": NAN}) for step in range(100, 110)] == [[]] * 10


class TestMetric:
    def test_it_says_when_it_was_finite_last(self) -> None:
        (incident,) = scan([bad_metric()])
        assert incident.verdict == "The metric precision is not finite at step 120, while the loss is fine."
        assert "the metric was finite at step 110" in incident.evidence[0].text
        assert incident.weights.usable is True

    def test_a_metric_that_follows_the_loss_is_no_news(self) -> None:
        columns = {"loss": [1.0, NAN, NAN], "accuracy_running": [0.5, NAN, NAN]}
        assert MetricFold().feed(batch_of(columns)) == []

    def test_a_metric_that_is_finite_again_ends_it(self) -> None:
        columns = {"loss": [1.0, 1.0, 1.0], "accuracy_running": [0.5, NAN, 0.5]}
        assert [finding.phase for finding in MetricFold().feed(batch_of(columns))] == ["open", "resolve"]

    def test_two_metrics_are_one_incident(self) -> None:
        columns = {"loss": [1.0, 1.0], "a_running": [0.5, NAN], "b_running": [0.5, NAN]}
        (incident,) = scan([batch_of(columns)])
        assert [finding.facts["metric"] for finding in incident.findings] == ["a", "b"]

    def test_a_missing_cell_is_not_nan(self) -> None:
        columns = {"loss": [1.0, 1.0], "a_running": [0.5, NAN]}
        assert MetricFold().feed(batch_of(columns, present={"a_running": [True, False]})) == []


class TestRunaway:
    def test_it_is_put_down_to_the_labels(self) -> None:
        (incident,) = scan([runaway()])
        assert (incident.severity, incident.causes[0].cause) == ("critical", "bad_label")

    @pytest.mark.parametrize("name", ["binary_crossentropy", "BinaryCrossentropy(from_logits=True)"])
    def test_a_negative_cross_entropy_needs_no_further_proof(self, name: str) -> None:
        loss = 0.5 - 0.01 * np.arange(120)
        incident = scan([batch_of({"loss": loss})], environment=Environment(loss=name))[0]
        # Rows 48 to 55 are the first group of 8 whose level is below zero; the third is the proof.
        assert (incident.kind, incident.detected_step) == ("runaway_negative_loss", 71)
        causes = [cause.cause for cause in incident.causes]
        assert causes == ["bad_label", "bad_sample_weight", "unbounded_loss"]

    @pytest.mark.parametrize("name", ["", "poisson", "my_loss"])
    def test_another_loss_may_well_be_negative(self, name: str) -> None:
        assert scan([likelihood()], environment=Environment(loss=name)) == []

    def test_an_even_fall_far_beyond_its_start_is_one_in_the_end(self) -> None:
        (finding,) = RunawayFold().feed(batch_of({"loss": 1.0 - 0.1 * np.arange(400)}))
        assert 200 <= finding.detected_step <= 220  # 20 times its size of 1


class TestLowScale:
    def test_it_is_a_warning_with_the_count_of_skips(self) -> None:
        (incident,) = [item for item in scan([stuck_scale()]) if item.severity == "warning"]
        assert incident.kind == "loss_scale_stuck_low"
        assert "updates were skipped" in incident.verdict

    def test_updates_that_are_applied_again_end_it(self) -> None:
        columns = {name: series.values.copy() for name, series in stuck_scale().columns.items()}
        columns["skipped"][400:] = 0.0
        assert [item.phase for item in low_scales(batch_of(columns))] == ["open", "resolve"]

    def test_a_low_scale_without_skips_is_fine(self) -> None:
        columns = {name: series.values.copy() for name, series in stuck_scale().columns.items()}
        columns["skipped"][:] = 0.0
        assert low_scales(batch_of(columns)) == []


class TestSpeed:
    def test_it_tells_both_times(self) -> None:
        (incident,) = scan([slow()])
        facts = incident.findings[0].facts
        assert facts["usual_step_time"] == pytest.approx(0.05, rel=0.15)
        assert facts["step_time"] == pytest.approx(0.15, rel=0.15)

    def test_steps_that_are_quick_again_end_it(self) -> None:
        time = np.full(1200, 0.05)
        time[:32] = 5.0  # tracing: no measure of what is slow
        time[300:700] = 0.2
        assert [item.phase for item in SpeedFold().feed(batch_of({"step_time_s": time}))] == [
            "open",
            "resolve",
        ]

    def test_a_slow_first_block_teaches_nothing(self) -> None:
        time = np.where(np.arange(600) < 32, 5.0, 0.05)
        assert SpeedFold().feed(batch_of({"step_time_s": time})) == []
