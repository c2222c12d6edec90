"""The benchmarks run and say what they should; their figures are for `scripts/bench` on a quiet machine."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bench import chart, detect, ingest, latency, start, step_cost
from bench.__main__ import render
from bench.result import Result, median_interval, quantiles


def figures(results: list[Result]) -> dict[str, str]:
    return {result.what: result.figure for result in results}


def test_the_interval_holds_the_median_and_narrows_with_more_rounds() -> None:
    rng = np.random.default_rng(1)
    few, many = median_interval(rng.normal(size=20)), median_interval(rng.normal(size=2000))
    assert few[1] <= few[0] <= few[2]
    assert many[2] - many[1] < few[2] - few[1]
    assert abs(many[0]) < 0.1


def test_quantiles_are_told_in_milliseconds() -> None:
    assert quantiles(np.linspace(0, 0.1, 101)) == "p50 50.0 ms, p99 99.0 ms, worst 100.0 ms"


def test_the_page_has_a_row_for_each_figure() -> None:
    page = render([Result("start", "0.5 s", "median"), Result("memory", "70 MiB", "VmRSS")])
    assert "| start | 0.5 s | median |\n| memory | 70 MiB | VmRSS |\n" in page


def test_the_detectors_are_measured_with_and_without_layers_and_at_two_lengths() -> None:
    told = figures(detect.run(True))
    assert [float(figure.split()[0].replace(",", "")) > 0 for figure in told.values()] == [True] * 5
    assert [name for name in told if name.startswith("memory")] == [
        "memory of the detectors, 1,000 steps",
        "memory of the detectors, 10,000 steps",
    ]


@pytest.mark.slow
def test_start_chart_and_ingest_are_measured() -> None:
    told = figures([*start.run(True), *chart.run(True), *ingest.run(True)])
    assert float(told["start"].split()[0]) > 0
    assert float(told["disk"].split()[0]) > 1  # eight bytes of noise cannot become one
    assert re.match(r"[\d,]+ k values/s", told["ingest, full frames"])
    assert len(told) == 13


@pytest.mark.tensorflow
def test_latency_is_measured() -> None:
    told = figures(latency.run(True))
    assert told["from a step's end to a browser's socket"].startswith("p50 ")


@pytest.mark.slow
@pytest.mark.tensorflow
def test_step_cost_is_measured() -> None:
    told = figures(step_cost.run(True))
    assert [name for name in told if name.startswith("added")] == [
        "added to a step, dense",
        "added to a step, dense, server elsewhere",
        "added to a step, dense, A/A",
        "added to a step, dense, by TerminateOnNaN",
        "added to a step, dense, by TensorBoard",
        "added to a step, dense, by check_numerics",
    ]
