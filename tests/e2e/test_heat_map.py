"""The heat map of layers and steps, in a real browser: its colours are read from its canvas."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.pushed_run import Run
from trainvitals import wire

pytestmark = pytest.mark.browser
OpenPage = Callable[..., Page]
NewRun = Callable[..., Run]
NAN, INF = float("nan"), float("inf")
GAP = "0,0,0,0"
PIXELS = """canvas => {
  const {data, width} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const cells = Array.from({length: data.length / 4}, (_, i) => data.slice(4 * i, 4 * i + 4).join());
  return Array.from({length: canvas.height}, (_, i) => cells.slice(i * width, (i + 1) * width));
}"""
COLOR = """(card, name) => {
  const probe = card.appendChild(document.createElement("i"));
  probe.style.color = `var(--${name})`;
  const parts = getComputedStyle(probe).color.match(/\\d+/g);
  probe.remove();
  return [...parts, 255].join();
}"""


def layers(run: Run, count: int) -> None:
    """Say that the run's model has so many layers."""
    named = [wire.Layer(name=f"dense_{i}", kind="Dense", parameters=4, dtype="float32") for i in range(count)]
    run.layout(named, wire.Environment())


def drawn(page: Page, last_step: str) -> Locator:
    """Return the card of the heat map once it shows the run up to `last_step`."""
    card = page.locator("#norms")
    card.scroll_into_view_if_needed()
    expect(card.locator("canvas")).to_have_attribute("aria-label", re.compile(rf"to {last_step}[;.]"))
    return card


def pixels(card: Locator) -> list[list[str]]:
    """Return the colours of all cells, by layer and column."""
    found: list[list[str]] = card.locator("canvas").evaluate(PIXELS)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nan_infinity_and_missing_are_no_colours_of_a_value(
    open_page: OpenPage, new_run: NewRun, scheme: str
) -> None:
    run = new_run(f"heat-{scheme}")
    layers(run, 3)
    norms = np.ones((40, 3))
    norms[10, 1], norms[20, 2], norms[30, 0] = 100.0, NAN, INF
    present = np.ones((40, 3), dtype=bool)
    present[35, 1] = False
    run.layer_norms(norms, present)
    card = drawn(open_page(run.url, color_scheme=scheme), "39")
    seen = pixels(card)
    assert seen[2][20] == card.evaluate(COLOR, "nan")
    assert seen[0][30] == card.evaluate(COLOR, "posinf")
    assert seen[1][35] == GAP
    assert seen[1][10] == card.evaluate(COLOR, "heat-high")
    assert seen[0][5] == card.evaluate(COLOR, "heat-middle")
    expect(card.locator(".heat-bad")).to_have_text("first not finite: dense_2, step 20")


def test_the_pointer_and_the_arrow_keys_tell_layer_step_and_value(
    open_page: OpenPage, new_run: NewRun
) -> None:
    run = new_run()
    layers(run, 2)
    norms = np.full((10, 2), 0.5)
    norms[4, 1] = 2.0
    norms[6, 0] = NAN
    run.layer_norms(norms)
    page = open_page(run.url)
    card = drawn(page, "9")
    box = card.locator("canvas").bounding_box()
    assert box
    page.mouse.move(box["x"] + 0.45 * box["width"], box["y"] + 0.75 * box["height"])
    said = card.locator("output")
    expect(said).to_have_text("dense_1, step 4: 2, 4 × its median")
    page.mouse.move(0, 0)
    expect(said).to_have_text("")
    card.locator("canvas").focus()
    expect(said).to_have_text("dense_0, step 9: 0.5, 1 × its median")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    expect(said).to_have_text("dense_0, step 6: NaN")
    page.keyboard.press("ArrowDown")
    expect(said).to_have_text("dense_1, step 6: 0.5, 1 × its median")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_update_ratios_are_chosen_and_shown_until_the_next_measurement(
    open_page: OpenPage, new_run: NewRun, scheme: str
) -> None:
    run = new_run(f"ratios-{scheme}")
    layers(run, 2)
    ratios, measured = np.full((40, 2), 1e-3), np.zeros((40, 2), dtype=bool)
    ratios[20, 1], ratios[30, 0], measured[[10, 20, 30]] = 0.1, NAN, True
    run.layer_norms(np.ones((40, 2)), layer_update_ratio=(ratios, measured))
    page = open_page(run.url, color_scheme=scheme)
    card = drawn(page, "39")
    choice = card.get_by_label("What the map of the layers shows")
    expect(choice.locator("option")).to_have_text(["Gradient norm", "Update ratio"])
    choice.select_option("Update ratio")
    expect(card.locator("h2")).to_have_text("Update ratio by layer")
    canvas = card.locator("canvas")
    expect(canvas).to_have_attribute("aria-label", re.compile("^Update ratio of 2 layers, steps 0 to 39;"))
    expect(card.locator(".heat-bad")).to_have_text("first seen not finite: dense_0, step 30")
    seen = pixels(card)
    assert seen[1][9] == GAP
    assert seen[1][10] == seen[1][19] == card.evaluate(COLOR, "heat-middle")
    assert seen[1][20] == seen[1][29] == card.evaluate(COLOR, "heat-high")
    assert seen[0][30] == seen[0][39] == card.evaluate(COLOR, "nan")
    canvas.focus()
    expect(card.locator("output")).to_have_text("dense_0, step 30: NaN")
    assert page.evaluate("location.hash") == "#layers=layer_update_ratio"
    page.evaluate("location.hash = 'layers=layer_update_ratio&from=22&to=26'")  # between two measurements
    card = drawn(page, "26")
    page.keyboard.press("ArrowDown")
    expect(card.locator("output")).to_have_text("dense_1, step 20: 0.1, 100 × its median")


def test_what_layers_gave_out_is_chosen_and_shows_the_layers_that_it_is_known_of(
    open_page: OpenPage, new_run: NewRun
) -> None:
    run = new_run()
    kinds = {"dense": ("relu", True), "act": ("relu", False), "head": ("tanh", True)}
    watched = [
        wire.Layer(name=name, kind="Dense", activation=activation, has_gradient=has_gradient)
        for name, (activation, has_gradient) in kinds.items()
    ]
    run.layout(watched, wire.Environment())
    rows = np.arange(40)
    present = np.repeat((rows % 10 == 0)[:, np.newaxis], 3, axis=1)
    dead = np.zeros((40, 3))
    dead[:, 1] = np.where(rows >= 20, 1.0, 0.5)
    bent = np.full((40, 3), 0.25)
    run.layer_norms(
        np.ones((40, 3)),
        np.array([[True, False, True]] * 40),
        layer_dead_share=(dead, present & [True, True, False]),
        layer_saturated_share=(bent, present & [False, False, True]),
        layer_activation_absmax=(np.ones((40, 3)), present),
    )
    page = open_page(run.url)
    card = drawn(page, "39")
    names = card.locator(".heat-names > *")
    expect(names).to_have_text(["dense", "head"])  # no gradient is known of a layer without weights
    card.locator("select").select_option(label="Share of dead units")
    expect(names).to_have_text(["dense", "act"])
    expect(card.locator(".note-line")).to_contain_text("of the whole layer")
    seen = pixels(card)
    assert seen[1][0] == seen[1][19] == card.evaluate(COLOR, "heat-middle")
    assert seen[1][20] == seen[1][39] == card.evaluate(COLOR, "heat-high")
    assert seen[0][0] == card.evaluate(COLOR, "heat-low")
    card.locator("canvas").focus()
    page.keyboard.press("ArrowDown")
    expect(card.locator("output")).to_have_text("act, step 30: 1")
    card.locator("select").select_option(label="Share of saturated outputs")
    expect(names).to_have_text(["head"])


def test_new_steps_come_without_a_reload_and_a_zoom_shows_single_steps(
    open_page: OpenPage, new_run: NewRun
) -> None:
    run = new_run()
    layers(run, 6)
    run.layer_norms(np.ones((100, 6)))
    page = open_page(run.url)
    drawn(page, "99")
    bad = np.ones((50, 6))
    bad[20:, :] = NAN
    run.layer_norms(bad)
    card = drawn(page, "149")
    expect(card.locator(".heat-bad")).to_have_text("first not finite: every layer, step 120")
    page.evaluate("location.hash = 'from=118&to=121'")
    card = drawn(page, "121")
    nan = card.evaluate(COLOR, "nan")
    assert [color == nan for color in pixels(card)[3]] == [False, False, True, True]


@pytest.mark.parametrize("count", [1, 60])
def test_one_bad_step_of_a_million_is_seen(open_page: OpenPage, new_run: NewRun, count: int) -> None:
    run = new_run(f"million-{count}")
    layers(run, count)
    for part in range(10):  # 10,000 rows, 100 steps apart
        norms = np.ones((1000, count))
        if part == 7:
            norms[77, -1] = NAN
        run.layer_norms(norms, stride=100)
    card = drawn(open_page(run.url), "999,900")
    last = pixels(card)[-1]
    box = card.locator("canvas").bounding_box()
    assert box
    assert len(last) * 2 <= box["width"]  # at least two pixels for a column
    nan = card.evaluate(COLOR, "nan")
    bad = [i for i, color in enumerate(last) if color == nan]
    assert 707_700 * len(last) // 999_901 in bad
    assert len(bad) <= 2  # what the server put together may lie in two columns
    assert box["height"] >= 4 * count
    expect(card.locator(".heat-bad")).to_have_text(f"first not finite: dense_{count - 1}, step 707,700")


def test_a_run_without_layers_has_no_heat_map(open_page: OpenPage, new_run: NewRun) -> None:
    run = new_run()
    run.rows([1.0])
    page = open_page(run.url)
    expect(page.locator("#figures")).to_contain_text("0")
    expect(page.locator("#norms")).to_be_hidden()
