"""The run page in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, expect

from e2e.pushed_run import Run
from server_process import ServerProcess, running_server
from trainvitals import wire

pytestmark = pytest.mark.browser
OpenPage = Callable[..., Page]
NewRun = Callable[..., Run]
NAN, INF = float("nan"), float("inf")
LOSS = '[data-series="loss"]'
CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
LINE = f"{LOSS} .scatterlayer path.js-line"


def chips(page: Page) -> dict[str, int]:
    """Return the counts that the loss chart shows, by kind."""
    found = page.locator(f"{LOSS} .chip").all()
    return {
        str(chip.get_attribute("data-kind")): int(chip.get_attribute("data-count") or 0) for chip in found
    }


def strokes(page: Page) -> int:
    """Return in how many pieces the line of the loss is drawn."""
    return sum((line.get_attribute("d") or "").count("M") for line in page.locator(LINE).all())


def drag_over_plot(page: Page, start: float, stop: float) -> None:
    """Zoom by dragging over a share of the loss chart."""
    box = page.locator(f"{LOSS} .nsewdrag").bounding_box()
    assert box
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + stop * box["width"], y, steps=5)
    page.mouse.up()


def test_nan_infinities_and_missing_are_four_things_on_the_page(open_page: OpenPage, new_run: NewRun) -> None:
    run = new_run()
    values = [1.0, 0.9, NAN, NAN, NAN, 0.8, 0.7, INF, 0.6, -INF, -INF, 0.5, 0.0, 0.0, 0.0, 0.0, 0.4, 0.3]
    run.rows(values, [not 12 <= i <= 15 for i in range(18)])
    page = open_page(run.url)
    expect(page.locator(f"{LOSS} svg.lane")).to_be_visible()
    assert chips(page) == {"nan": 3, "posinf": 1, "neginf": 2, "missing": 4}
    marks = page.locator(f"{LOSS} svg.lane .mark .glyph").all()
    shapes = {(mark.get_attribute("data-kind"), mark.get_attribute("d")) for mark in marks}
    colors = {mark.evaluate("mark => getComputedStyle(mark).color") for mark in marks}
    assert {kind for kind, _ in shapes} == {"nan", "posinf", "neginf", "missing"}
    assert len({shape for _, shape in shapes}) == len(colors) == 4
    names = page.locator(f"{LOSS} svg.lane .lane-name").all_text_contents()
    assert names == ["NaN", "+Inf", "−Inf", "missing"]


def test_the_line_breaks_at_what_is_no_number_and_at_what_is_missing(
    open_page: OpenPage, new_run: NewRun
) -> None:
    run = new_run()
    run.rows([1.0, 0.9, NAN, 0.8, 0.7, 0.0, 0.6, 0.5], [i != 5 for i in range(8)])
    page = open_page(run.url)
    expect(page.locator(LINE)).not_to_have_count(0)
    assert strokes(page) == 3


def test_rows_appear_live_and_a_declared_loss_is_shaded(open_page: OpenPage, new_run: NewRun) -> None:
    run = new_run()
    run.rows([1.0] * 20)
    run.lose(10, "queue_full")
    run.rows([1.0] * 20)
    page = open_page(run.url)
    expect(page.locator(f"{LOSS} .annotation-text")).to_have_text("lost: queue full")
    page.evaluate("window.isSameDocument = true")
    run.rows([0.5, NAN])
    expect(page.locator(f'{LOSS} .chip[data-kind="nan"]')).to_have_text("NaN 1")
    expect(page.get_by_test_id("range")).to_have_text("Steps 0 – 51")
    expect(page.locator(f"{LOSS} .now")).to_have_text("NaN")
    run.lose(5, "ring_overflow")
    run.rows([0.5])
    expect(page.locator(f"{LOSS} .annotation-text").last).to_have_text("lost: ring overflow")
    assert page.evaluate("window.isSameDocument")


def test_a_spike_is_drawn_at_every_zoom(open_page: OpenPage, new_run: NewRun) -> None:
    run = new_run()
    losses = [1.0] * 6000
    losses[4321] = 77.0
    for start in range(0, 6000, 2000):
        run.rows(losses[start : start + 2000])
    page = open_page(run.url)
    expect(page.locator(LINE)).not_to_have_count(0)
    highest = f"Math.max(...document.querySelector('{LOSS} .plot').data.flatMap(trace => trace.y))"
    assert page.evaluate(highest) == 77.0
    longest = f"Math.max(...document.querySelector('{LOSS} .plot').data.map(trace => trace.x.length))"
    assert page.evaluate(longest) <= 2000
    page.goto(f"{run.url}#from=4300&to=4340")
    page.reload()
    expect(page.get_by_test_id("range")).to_have_text("Steps 4,300 – 4,340")
    page.wait_for_function(f"document.querySelector('{LOSS} .plot').data?.[1].x.includes(4321)")
    assert (
        page.evaluate(f"document.querySelector('{LOSS} .plot').data[1].x.length") == 43
    )  # one more on each side


def test_zooming_pauses_following_until_it_is_resumed(open_page: OpenPage, new_run: NewRun) -> None:
    run = new_run()
    run.rows([1.0 / (1 + i) for i in range(100)], grad_norm=[1.0] * 100)
    page = open_page(run.url)
    follow = page.locator("#follow")
    expect(follow).to_have_text("Following")
    expect(page.locator(f"{LOSS} .nsewdrag")).to_be_visible()
    drag_over_plot(page, 0.25, 0.5)
    expect(follow).to_have_text("Paused · resume")
    expect(page.get_by_test_id("range")).to_have_text("Steps 24 – 50")
    assert "from=24&to=50" in page.url
    linked = "document.querySelector('[data-series=\"grad_norm\"] .plot').layout?.xaxis.range.join()"
    page.locator('[data-series="grad_norm"]').scroll_into_view_if_needed()
    page.wait_for_function(f"{linked} === '24,50'")
    run.rows([0.0] * 50)
    expect(page.locator(".figures")).to_contain_text("149")
    expect(page.get_by_test_id("range")).to_have_text("Steps 24 – 50")
    follow.click()
    expect(page.get_by_test_id("range")).to_have_text("Steps 0 – 149")
    assert "#" not in page.url
    drag_over_plot(page, 0.25, 0.5)
    expect(follow).to_have_text("Paused · resume")
    page.locator(f"{LOSS} .nsewdrag").dblclick()
    expect(follow).to_have_text("Following")


def test_the_axis_can_be_switched_to_logarithmic(open_page: OpenPage, new_run: NewRun) -> None:
    run = new_run()
    run.rows([1.0, 2.0, 3.0])
    page = open_page(run.url)
    button = page.get_by_role("button", name="Logarithmic axis for Loss")
    expect(page.locator(LINE)).not_to_have_count(0)
    expect(button).to_have_attribute("aria-pressed", "false")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(f"document.querySelector('{LOSS} .plot').layout.yaxis.type") == "log"


def test_an_incident_is_announced_and_told_in_full(open_page: OpenPage, new_run: NewRun) -> None:
    run = new_run()
    run.rows([1.0 / (1 + i) for i in range(200)], grad_norm=[1.0] * 200)
    page = open_page(run.url)
    expect(page.get_by_test_id("no-incident")).to_be_visible()
    run.rows([NAN] * 20, grad_norm=[NAN] * 20)
    card = page.locator("article.incident")
    expect(card).to_have_attribute("data-severity", "critical")
    expect(page.locator("#news")).to_contain_text("New incident")
    expect(card.locator(".verdict")).not_to_be_empty()
    expect(card.locator(".facts")).to_contain_text("200")
    assert card.get_by_role("heading", level=3).all_inner_texts()[:1] == ["Why"]
    expect(card.get_by_text("Next", exact=True)).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 800})
    expect(page.locator('[data-series="grad_norm"] .plot')).not_to_be_empty()
    expect(page.locator("html")).to_have_js_property("scrollWidth", 390)
    card.get_by_role("button", name="Show on the charts").click()
    expect(page.locator("#follow")).to_have_text("Paused · resume")
    expect(page.locator(f"{LOSS} .shapelayer path")).not_to_have_count(0)


def limping(run: Run, rows: int) -> None:
    """Push rows of which every fifth is NaN and skipped, by a scaler that halves its scale then."""
    bad = np.arange(rows) % 5 == 4
    scale = 2.0**15 * 0.5 ** np.concatenate(([0], np.cumsum(bad)[:-1]))
    loss = np.where(bad, NAN, 1.0)
    run.rows(loss, grad_norm=loss, loss_scale=scale, skipped=bad.astype(float))


def test_of_much_evidence_the_first_is_shown_and_what_was_unfolded_stays_so(
    open_page: OpenPage, new_run: NewRun
) -> None:
    run = new_run()
    run.rows([1.0 / (1 + i) for i in range(200)], grad_norm=[1.0] * 200, loss_scale=[2.0**15] * 200)
    limping(run, 400)
    page = open_page(run.url)
    folded = page.locator(".evidence details")
    expect(page.locator(".evidence > table tr")).to_have_count(4)
    folded.locator("summary").click()
    expect(folded.locator("tr").first).to_be_visible()
    before = folded.locator("tr").count()
    limping(run, 400)
    expect(folded.locator("tr")).not_to_have_count(before)
    expect(folded.locator("tr").first).to_be_visible()


def test_the_environment_is_shown_and_its_names_are_text(open_page: OpenPage, new_run: NewRun) -> None:
    run = new_run(name="<b>bold</b>")
    layer = wire.Layer(
        name="<i>dense</i>", kind="Dense", parameters=12, dtype="float32", compute_dtype="float16"
    )
    environment = wire.Environment(
        dtype_policy="mixed_float16",
        optimizer="Adam",
        optimizer_config={"epsilon": 1e-7, "clipnorm": None},
        versions={"keras": "3.15.0"},
    )
    run.layout([layer], environment)
    run.rows([1.0])
    page = open_page(run.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("<b>bold</b>")
    panel = page.locator("#environment")
    for text in ("mixed_float16", "Adam", "1.00e−7", "none", "3.15.0"):
        expect(panel).to_contain_text(text)
    row = page.locator("#layers tbody tr")
    assert row.locator("td").all_inner_texts()[1:] == ["<i>dense</i>", "Dense", "12", "float32", "float16"]


def test_a_run_can_be_stopped_after_a_second_question(open_page: OpenPage, new_run: NewRun) -> None:
    run = new_run()
    run.rows([1.0])
    page = open_page(run.url)
    page.get_by_role("button", name="Stop run").click()
    page.get_by_role("button", name="Really stop?").click()
    expect(page.get_by_text("Stop requested")).to_be_visible()


def test_a_link_shows_the_view_it_was_made_of(open_page: OpenPage, new_run: NewRun) -> None:
    run = new_run()
    run.rows([1.0 / (1 + i) for i in range(200)], grad_norm=[1.0] * 200)
    page = open_page(f"{run.url}#from=40&to=60&log=loss")
    expect(page.get_by_test_id("range")).to_have_text("Steps 40 – 60")
    expect(page.get_by_role("button", name="Logarithmic axis for Loss")).to_have_attribute(
        "aria-pressed", "true"
    )
    page.get_by_role("button", name="Zoom out").press("Enter")
    expect(page.get_by_test_id("range")).to_have_text("Steps 30 – 70")
    page.get_by_role("button", name="Later steps").press("Enter")
    expect(page.get_by_test_id("range")).to_have_text("Steps 40 – 80")
    assert page.url.endswith("#from=40&to=80&log=loss")


def test_the_page_comes_back_after_the_server_was_away(tmp_path: Path, open_page: OpenPage) -> None:
    with running_server(tmp_path) as server:
        run = Run(server, "survivor")
        run.rows([1.0] * 10)
        page = open_page(run.url, expected="ERR_CONNECTION_REFUSED")
        expect(page.locator("#link")).to_have_text("Live")
        server.kill()
        expect(page.locator("#link")).to_have_text("Reconnecting")
        server.start()
        run.rows([NAN] * 5)
        expect(page.locator("#link")).to_have_text("Live")
        expect(page.locator(f"{LOSS} .chip")).to_have_text("NaN 5")
        page.close()


def test_validations_are_seen_and_new_ones_come_without_a_reload(
    open_page: OpenPage, new_run: NewRun
) -> None:
    run = new_run()
    run.rows([3.0, 2.0, 1.0, 0.5])
    run.event("epoch", 1, epoch=0)
    run.event("validation", 1, epoch=0, val_loss=2.5, val_accuracy=0.75)
    page = open_page(run.url)
    expect(page.locator(f"{LOSS} .legend")).to_have_text("each batchvalidation loss")
    expect(page.locator(LINE)).not_to_have_count(0)
    assert page.evaluate(f"document.querySelector('{LOSS} .plot').data[3].y") == [2.5]
    expect(page.locator(".figures")).to_contain_text("Epoch1")
    page.get_by_text("More series").click()
    expect(page.get_by_role("heading", name="Validation accuracy")).to_be_visible()
    run.rows([0.4])
    run.event("validation", 3, epoch=1, val_loss=INF)
    expect(page.locator(f"{LOSS} .legend")).to_contain_text("validation loss, 1 not finite")


def test_what_an_earlier_session_did_beyond_the_resume_stays_to_be_seen(
    open_page: OpenPage, new_run: NewRun
) -> None:
    run = new_run()
    run.rows([5.0, 4.0, 3.0, 2.0])
    run.resume(2)
    run.rows([1.0, 0.5])
    page = open_page(run.url)
    expect(page.locator(f"{LOSS} .legend")).to_have_text("each batchearlier session")
    traces = f"document.querySelector('{LOSS} .plot').data"
    expect(page.locator(LINE)).not_to_have_count(0)
    assert page.evaluate(f"{traces}[0].name") == "earlier session"
    assert page.evaluate(f"{traces}[0].y") == [4.0, 3.0, 2.0]
    assert page.evaluate(f"{traces}[2].y") == [5.0, 4.0, 1.0, 0.5]


def test_of_a_run_that_is_not_there_only_the_message_is_shown(
    server: ServerProcess, open_page: OpenPage
) -> None:
    page = open_page(f"{server.url}/runs/nobody", expected="404")
    expect(page.get_by_role("alert")).to_have_text("There is no such run. It may have been deleted.")
    assert page.locator("#main > :visible").count() == 1


def test_a_run_that_is_deleted_leaves_its_page_and_the_board(
    server: ServerProcess, open_page: OpenPage, new_run: NewRun
) -> None:
    run = new_run("doomed")
    run.rows([1.0])
    page, board = open_page(run.url), open_page(server.url)
    expect(page.locator("#link")).to_have_text("Live")
    expect(board.locator("#link")).to_have_text("Live")
    expect(board.locator("tr[data-run=doomed]")).to_be_visible()
    httpx.delete(f"{server.url}/api/v1/runs/doomed", trust_env=False).raise_for_status()
    expect(page.get_by_role("alert")).to_have_text("This run was deleted.")
    assert page.locator("#main > :visible").count() == 1
    expect(board.locator("tr[data-run=doomed]")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa_in_both_themes(
    open_page: OpenPage, new_run: NewRun, scheme: str
) -> None:
    run = new_run(f"theme-{scheme}")
    run.rows([1.0, NAN, INF, -INF])
    page = open_page(run.url, color_scheme=scheme)
    expect(page.locator(LINE)).not_to_have_count(0)
    ratios = page.evaluate(CONTRAST)
    assert min(ratios.values()) >= 4.5, ratios
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == dark) == (scheme == "dark")
    page.get_by_role("button", name="Theme: dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == background
