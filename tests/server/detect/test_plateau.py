"""Plateaus, oscillation and constants: where they begin, what ends them, what they are put down to."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stuck import alternating, guessing, never_learning, no_gradient, printed_zero
from traces import NAN, batch_of, learning
from trainvitals.wire import Environment, Layer
from trainvitals_server.batch import Batch
from trainvitals_server.detect.blocks import LOSS_BLOCK, Block, Blocks, Latest
from trainvitals_server.detect.constant import ConstantFold
from trainvitals_server.detect.oscillation import OscillationFold
from trainvitals_server.detect.plateau import PlateauFold
from trainvitals_server.finding import Finding
from trainvitals_server.fold import scan
from trainvitals_server.incident import Incident

ADAM = Environment(optimizer="Adam")
LAYERS = (Layer(name="hidden", kind="Dense", parameters=144), Layer(name="prob", kind="Dense", parameters=17))


def first(batch: Batch, environment: Environment = ADAM) -> Incident:
    return scan([batch], environment=environment, layers=LAYERS)[0]


def plateaus(batch: Batch) -> list[Finding]:
    return PlateauFold().feed(batch, Blocks(LOSS_BLOCK).cut(batch, "loss"))


def oscillations(batch: Batch) -> list[Finding]:
    return OscillationFold().feed(Blocks(LOSS_BLOCK).cut(batch, "loss"))


class TestBlocks:
    def test_only_finite_cells_fill_a_block(self) -> None:
        batch = batch_of({"loss": [1.0, NAN, 2.0, math.inf, 9.0, 3.0]}, present={"loss": [1, 1, 1, 1, 0, 1]})
        assert Blocks(3).cut(batch, "loss") == [Block([1.0, 2.0, 3.0], 0, 5, level=2.0, swing=1.0, turns=0.0)]

    def test_noise_is_that_of_the_rows_not_of_the_trend(self) -> None:
        values = 0.1 * np.random.default_rng(0).normal(size=4000) - 0.001 * np.arange(4000)
        (block,) = Blocks(4000).cut(batch_of({"loss": values}), "loss")
        assert block.noise == pytest.approx(0.1, rel=0.05)

    @given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=5, max_size=40), st.data())
    def test_a_block_says_what_its_rows_say_however_they_came(
        self, values: list[float], data: st.DataObject
    ) -> None:
        cut = data.draw(st.integers(0, len(values)))
        blocks, batch = Blocks(5), batch_of({"loss": values})
        pieces = (batch.slice(0, cut), batch.slice(cut, len(values)))
        found = [block for piece in pieces for block in blocks.cut(piece, "loss")]
        assert [block.values for block in found] == [
            values[start : start + 5] for start in range(0, len(values) - 4, 5)
        ]
        for block in found:
            moves = [b - a for a, b in pairwise(block.values)]
            turned = sum(a < 0 < b or b < 0 < a for a, b in pairwise(moves))
            assert (block.level, block.swing) == (median(block.values), median(map(abs, moves)))
            assert (block.turns, block.last_step - block.first_step) == (turned / 3, 4)

    def test_the_latest_value_is_the_one_up_to_the_step_that_is_asked_about(self) -> None:
        latest = Latest("learning_rate", 5.0)
        batch = batch_of({"learning_rate": [1.0, 2.0, 3.0]}, steps=[10, 20, 30])
        assert (latest.at(batch, 20), latest.at(batch, 9)) == (2.0, 5.0)


class TestPlateau:
    def test_it_goes_back_to_the_first_row(self) -> None:
        assert plateaus(never_learning())[0].onset_step == 0

    def test_a_loss_that_comes_down_after_all_withdraws_it(self) -> None:
        still = never_learning().columns["loss"].values
        loss = np.concatenate([still, 0.7 * np.exp(-np.arange(300) / 50)])
        assert [finding.phase for finding in plateaus(batch_of({"loss": loss}))] == [
            "open",
            "withdraw",
        ]

    def test_a_rate_too_low_to_move_anything_is_told_with_the_arithmetic(self) -> None:
        cause = first(never_learning()).causes[0]
        # 416 steps at 1e-9, a norm of 0.3 and 161 parameters: 416e-9 * 0.3 * 12.7 = 1.6e-6.
        assert (cause.cause, cause.confidence > 0.9) == ("learning_rate_too_low", True)
        assert "1.6e-06" in cause.supports[1]

    def test_an_ordinary_rate_is_not_blamed(self) -> None:
        columns = {name: series.values for name, series in never_learning().columns.items()}
        columns["learning_rate"] = np.full(800, 1e-3)
        assert first(batch_of(columns)).causes[0].cause == "constant_output"

    def test_the_loss_of_guessing_is_named(self) -> None:
        incident = first(guessing())
        assert incident.verdict.endswith("exactly what guessing among 10 classes costs.")
        assert incident.causes[0].cause == "constant_output"

    def test_a_floor_beside_the_loss_of_guessing_is_a_floor(self) -> None:
        loss = guessing().columns["loss"].values + 0.03
        assert plateaus(batch_of({"loss": loss})) == []

    def test_a_constant_loss_is_a_plateau(self) -> None:
        (finding,) = plateaus(batch_of({"loss": np.full(400, 0.5)}))
        assert (finding.onset_step, finding.detected_step) == (0, 319)


class TestConstant:
    @pytest.mark.parametrize("loss", [0.0, 2.5])
    def test_non_finite_gradients_behind_a_constant_loss_are_critical(self, loss: float) -> None:
        batch = batch_of({"loss": np.full(60, loss), "grad_norm": np.full(60, NAN)})
        (finding,) = ConstantFold().feed(batch)
        assert (finding.severity, finding.onset_step, finding.detected_step) == ("critical", 0, 31)

    def test_a_softmax_without_gradient_is_suspected_with_its_layer(self) -> None:
        environment = Environment(operations={"Softmax": ["model_1/prob_1/Softmax"]})
        incident = first(no_gradient(), environment)
        assert (incident.causes[0].cause, incident.layer) == ("single_unit_softmax", "prob")

    def test_without_a_softmax_it_is_a_constant_output(self) -> None:
        assert first(no_gradient()).causes[0].cause == "constant_output"

    def test_a_zero_out_of_the_blue_may_be_a_nan(self) -> None:
        assert first(printed_zero()).verdict.endswith("it may be a hidden NaN.")

    def test_a_few_equal_rows_are_nothing(self) -> None:
        assert ConstantFold().feed(batch_of({"loss": np.full(31, 1.0), "grad_norm": np.zeros(31)})) == []

    def test_a_constant_loss_with_gradients_is_no_failure(self) -> None:
        assert ConstantFold().feed(batch_of({"loss": np.full(99, 0.0), "grad_norm": np.ones(99)})) == []

    def test_a_loss_that_moves_again_ends_it(self) -> None:
        row = np.arange(100)
        batch = batch_of({"loss": 1.0 + 0.1 * np.sin(row), "grad_norm": np.where(row < 50, 0.0, 1.0)})
        assert [finding.phase for finding in ConstantFold().feed(batch)] == ["open", "resolve"]


class TestOscillation:
    def test_up_and_down_from_row_to_row_is_put_down_to_the_rate(self) -> None:
        incident = first(alternating())
        assert (incident.kind, incident.causes[0].cause) == ("oscillation", "learning_rate_too_high")
        assert "from one step to the next" in incident.verdict

    def test_a_bounce_that_dies_away_is_none(self) -> None:
        loss = learning(500, noise=0.01)
        loss[100:] += (np.arange(400) % 2) * np.exp(-np.arange(400) / 60)
        assert oscillations(batch_of({"loss": loss})) == []

    def test_a_loss_that_calms_down_withdraws_it(self) -> None:
        loss = np.concatenate([alternating().columns["loss"].values, np.full(200, 0.3)])
        phases = [finding.phase for finding in oscillations(batch_of({"loss": loss}))]
        assert phases == ["open", "withdraw"]
