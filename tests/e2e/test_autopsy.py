"""The replay of a failing step on the run page, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from e2e.pushed_run import Run

pytestmark = pytest.mark.browser
NAN = float("nan")
CONTRAST = (Path(__file__).with_name("contrast.js")).read_text(encoding="utf-8")
STEP = 200
REPORT = {
    "found": "operation",
    "is_reproduced": True,
    "operation": "AddV2",
    "direction": "forward",
    "layer": "encoder/attention",
    "file": "/home/me/<b>model.py",
    "line": 42,
    "function": "call",
    "code": "logits += (1 - mask) * logits.dtype.min",
    "inputs": [
        {"name": "0", "dtype": "float16", "shape": [32, 8, 8], "min": -356.0, "max": 258.0},
        {"name": "1", "dtype": "float16", "shape": [32, 1, 8], "min": -65504.0, "max": 0.0},
    ],
    "output": {
        "name": "output",
        "dtype": "float16",
        "shape": [32, 8, 8],
        "min": -356.0,
        "max": 258.0,
        "n_neginf": 12,
    },
    "n_bad": 12,
    "samples": [3, 17],
    "n_bad_samples": 2,
    "batch_size": 32,
    "bundle": "runs/a/437",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_replay_comes_into_the_open_incident_and_is_told_in_full(
    open_page: Callable[..., Page], new_run: Callable[..., Run], scheme: str
) -> None:
    run = new_run()
    run.rows([1.0 / (1 + i) for i in range(STEP)], grad_norm=[1.0] * STEP)
    page = open_page(run.url, scheme)
    run.rows([NAN] * 20, grad_norm=[NAN] * 20)
    expect(page.locator("article.incident")).to_have_attribute("data-severity", "critical")
    expect(page.get_by_test_id("autopsy")).to_have_count(0)
    run.event("autopsy", STEP, **REPORT)
    box = page.get_by_test_id("autopsy")
    expect(box).to_contain_text("AddV2 in encoder/attention, on the way forward.")
    expect(box).to_contain_text("<b>model.py:42 in call")
    expect(box).to_contain_text("logits += (1 - mask) * logits.dtype.min")
    expect(box).to_contain_text("Samples 3, 17 of 32 (counted from 0)")
    expect(box).to_contain_text("trainvitals replay runs/a/437")
    rows = [row.inner_text().split("\t") for row in box.locator("tbody tr").all()]
    assert rows == [
        ["input 0", "[−356, 258]", "0", "0", "0", "float16 [32, 8, 8]"],
        ["input 1", "[−65,504, 0]", "0", "0", "0", "float16 [32, 1, 8]"],
        ["output", "[−356, 258]", "0", "0", "12", "float16 [32, 8, 8]"],
    ]
    assert min(page.evaluate(CONTRAST).values()) >= 4.5
    page.set_viewport_size({"width": 390, "height": 800})
    expect(page.locator("html")).to_have_js_property("scrollWidth", 390)
