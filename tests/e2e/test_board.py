"""The board of runs in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from e2e.prefix_proxy import below_prefix
from e2e.pushed_run import Run
from server_process import ServerProcess
from trainvitals import wire

pytestmark = pytest.mark.browser
OpenPage = Callable[..., Page]
NewRun = Callable[..., Run]


def test_an_empty_board_shows_the_three_lines_until_the_first_run_arrives(
    empty_server: ServerProcess, open_page: OpenPage
) -> None:
    page = open_page(empty_server.url)
    lines = page.locator(".empty pre").inner_text().splitlines()
    assert [line.split("(")[0].split(" ")[0] for line in lines] == ["pip", "from", "model.fit"]
    assert empty_server.url in lines[2]
    readme = Path(__file__).parents[2] / "README.md"
    assert lines[0].partition("   #")[0] in readme.read_text(encoding="utf-8")
    page.get_by_role("button", name="Copy the three lines").click()
    expect(page.locator(".empty .copy")).to_have_text("Copied")
    Run(empty_server, "first", name="my first run").rows([1.0, 0.5])
    expect(page.get_by_role("link", name="my first run")).to_be_visible()
    expect(page.locator(".empty")).to_have_count(0)


def test_the_board_follows_a_run_without_a_reload(
    server: ServerProcess, open_page: OpenPage, new_run: NewRun
) -> None:
    run = new_run("live", name="followed")
    run.rows([1.0] * 10)
    page = open_page(server.url)
    page.evaluate("window.isSameDocument = true")
    row = page.locator("tr[data-run=live]")
    expect(row.locator(".step")).to_have_text("9")
    expect(row.locator(".state .state")).to_have_text("running")
    expect(row.locator("svg.sparkline .spark")).to_have_attribute("d", re.compile("^M.*L"))
    run.rows([0.5] * 90)
    expect(row.locator(".step")).to_have_text("99")
    assert page.evaluate("window.isSameDocument")


def test_the_worst_run_stands_first_until_it_has_ended(
    server: ServerProcess, open_page: OpenPage, new_run: NewRun
) -> None:
    bad = new_run("bad", name="goes to NaN")
    bad.rows([1.0 / (1 + i) for i in range(200)])
    bad.rows([float("nan")] * 30)
    new_run("good", name="younger and well").rows([1.0] * 20)
    page = open_page(server.url)
    row = page.locator("tr[data-run=bad]")
    expect(row.locator(".severity")).to_have_attribute("data-severity", "critical")
    expect(page.locator("tbody tr").first).to_have_attribute("data-urgency", "critical")
    expect(row.locator('svg .glyph[data-kind="nan"]').first).to_be_visible()
    bad.finish()
    expect(row.locator(".state .state")).to_have_text("finished")
    order = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.dataset.run)")
    assert order.index("good") < order.index("bad")


def test_a_name_is_text_however_it_is_written(
    server: ServerProcess, open_page: OpenPage, new_run: NewRun
) -> None:
    name = wire.clip("<img src=x onerror=window.isBroken=1>🤖" + "x" * 10_000)
    new_run("hostile", name=name, project="<script>window.isBroken=1</script>").rows([1.0])
    page = open_page(server.url)
    row = page.locator("tr[data-run=hostile]")
    expect(row.locator(".name")).to_contain_text("<img src=x onerror=window.isBroken=1>🤖xxx")
    assert row.locator("img, script").count() == 0
    assert page.evaluate("window.isBroken") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_keyboard_reaches_every_run(server: ServerProcess, open_page: OpenPage, new_run: NewRun) -> None:
    new_run("keyed", name="by keyboard").rows([1.0, 2.0])
    page = open_page(server.url)
    page.get_by_role("link", name="by keyboard").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("by keyboard")


def test_all_pages_work_below_a_path_prefix(
    server: ServerProcess, open_page: OpenPage, new_run: NewRun
) -> None:
    run = new_run("prefixed", name="below a prefix")
    run.rows([1.0] * 10)
    with below_prefix(server.url, "/user/me/proxy/8765") as address:
        page = open_page(f"{address}/")
        expect(page.locator("#link")).to_have_text("Live")
        page.get_by_role("link", name="below a prefix").click()
        expect(page.locator('[data-series="loss"] .nsewdrag')).to_be_visible()
        expect(page.locator("#link")).to_have_text("Live")
        run.rows([float("nan")])
        expect(page.locator('[data-series="loss"] .chip')).to_have_text("NaN 1")
        page.get_by_role("link", name="Runs").click()
        expect(page.locator("tr[data-run=prefixed] .step")).to_have_text("10")
        page.close()
