"""What the measured size of updates says in a diagnosis: evidence, and no incident of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traces import batch_of, gradual, learning
from trainvitals.wire import Layer
from trainvitals_server.batch import Batch, Series
from trainvitals_server.detect.rates import RateFold
from trainvitals_server.fold import scan
from trainvitals_server.incident import Incident

NAMES = (Layer(name="hidden"), Layer(name="head"))


def with_ratios(batch: Batch, ratios: dict[int, list[float]]) -> Batch:
    """Return the rows with the update ratios of two layers in some of them."""
    values, present = np.zeros((len(batch), 2)), np.zeros((len(batch), 2), dtype=bool)
    for row, cells in ratios.items():
        values[row], present[row] = cells, True
    return replace(batch, layer_columns={"layer_update_ratio": Series(values, present)}, layers=NAMES)


def told(batch: Batch, kind: str) -> Incident:
    return next(item for item in scan([batch], layers=NAMES) if item.kind == kind)


def test_a_large_update_speaks_for_a_rate_that_is_too_high() -> None:
    plain = told(gradual(), "gradual_divergence")
    incident = told(with_ratios(gradual(), {0: [9.0, 9.0], 290: [0.002, 0.31], 1990: [4.0, 4.0]}), plain.kind)
    text = "the update of step 290 changed the weights of `head` by 0.31 of their norm"
    assert incident.causes[0].cause == "learning_rate_too_high"
    assert text in incident.causes[0].supports
    assert incident.causes[0].confidence == plain.causes[0].confidence
    assert incident.onset_step == plain.onset_step


def test_a_usual_update_is_not_mentioned() -> None:
    incident = told(with_ratios(gradual(), {290: [0.002, 0.001]}), "gradual_divergence")
    assert not any("update of step" in text for cause in incident.causes for text in cause.supports)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (3e-9, "the update of step 300 changed no layer by more than 3.0e-09 of its norm"),
        (0.0, "the update of step 300 changed no weight at all"),
    ],
)
def test_updates_that_change_nothing_speak_for_a_rate_that_is_too_low(ratio: float, text: str) -> None:
    rng = np.random.default_rng(0)
    columns = {
        "loss": 2.3 + 0.01 * rng.normal(size=8000),
        "grad_norm": 1 + 0.1 * rng.random(8000),
        "learning_rate": np.full(8000, 1e-9),
    }
    batch = with_ratios(batch_of(columns), {300: [ratio, ratio / 2]})
    causes = told(batch, "plateau").causes
    too_low = next(cause for cause in causes if cause.cause == "learning_rate_too_low")
    assert text in too_low.supports


def test_no_ratio_makes_an_incident() -> None:
    batch = batch_of({"loss": learning(600)})
    alarms = [item.kind for item in scan([batch])]
    ratios = with_ratios(batch, {row: [0.5, 1e-12] for row in range(0, 600, 50)})
    assert [item.kind for item in scan([ratios], layers=NAMES)] == alarms


def test_the_last_ratios_are_kept_and_those_that_are_no_numbers_left_out() -> None:
    rates = RateFold()
    rates.feed(
        with_ratios(batch_of({"loss": np.ones(9)}), {2: [1.0, 2.0], 5: [np.nan, 0.25], 7: [np.nan] * 2})
    )
    summary = rates.summary()
    assert (summary.update, summary.update_step, summary.update_layer) == (0.25, 5, "head")
