"""What an open divergence says of its end: a range of steps, always that of the newest forecast."""

from __future__ import annotations

import re

import numpy as np

from traces import batch_of, fast, gradual, learning
from trainvitals_server.fold import scan

RANGE = re.compile(r"overflows float32 between step (\d+) and step (\d+)\.")


def verdict_after(rows: int) -> str:
    (incident,) = scan([gradual().slice(0, rows)])
    return incident.verdict


def test_the_end_of_float32_lies_in_the_range_that_is_told() -> None:
    end = int(np.flatnonzero(~np.isfinite(gradual().columns["loss"].values))[0])
    for rows in (500, 700, 1000, 1400):
        low, high = map(int, RANGE.findall(verdict_after(rows))[0])
        assert rows < low <= end <= high


def test_later_forecasts_replace_earlier_ones_and_are_narrower() -> None:
    ranges = [tuple(map(int, RANGE.findall(verdict_after(rows))[0])) for rows in (400, 1000, 1400)]
    widths = [high - low for low, high in ranges]
    assert widths == sorted(widths, reverse=True)
    assert len(set(ranges)) == 3


def test_once_it_is_not_finite_no_forecast_is_told() -> None:
    (incident,) = scan([gradual()])
    assert "overflows float32" not in incident.verdict
    assert (
        f"at step {incident.detected_step}, not finite at step {incident.nonfinite_step}" in incident.verdict
    )


def test_what_came_back_has_no_end() -> None:
    loss = learning(600)
    loss[300:340] += 0.3 * np.exp(0.15 * np.arange(40))
    (incident,) = [item for item in scan([batch_of({"loss": loss})]) if item.severity == "critical"]
    assert incident.state == "withdrawn"
    assert "overflows float32" not in incident.verdict


def test_a_forecast_without_an_upper_end_says_when_at_the_earliest() -> None:
    open_ended = [
        item.verdict
        for seed in range(20)
        for rows in range(303, 310)
        for item in scan([fast(seed).slice(0, rows)])
        if "overflows float32" in item.verdict and not RANGE.search(item.verdict)
    ]
    when = re.compile(r"float32 at (about )?step \d+(, not before step \d+)?\.")
    assert all(when.search(text) for text in open_ended)
