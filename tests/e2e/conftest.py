"""A real server, a real Chromium, and a page on which every console error and refused load fails the test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, ViewportSize, sync_playwright

from e2e.pushed_run import Run
from server_process import ServerProcess, running_server

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
TIMEOUT_MS = 15_000.0
VIEWPORT: ViewportSize = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    assert path, f"these tests need one of {', '.join(CHROMIUM_NAMES)}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Return a function that opens an address; at the end, the consoles of its pages must be clean."""
    complaints: list[str] = []
    pages: list[Page] = []

    def listen(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    def fail(request: Request) -> None:
        if "ERR_ABORTED" not in (request.failure or ""):  # a page that was left does not need its icon
            complaints.append(f"{request.failure}: {request.url}")

    def open_page(url: str, color_scheme: str = "light") -> Page:
        page = browser.new_page(viewport=VIEWPORT, color_scheme=color_scheme)  # type: ignore[arg-type]
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", listen)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", fail)
        page.goto(url)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []


@pytest.fixture
def new_run(server: ServerProcess, request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Return a function that opens a run, by default under the name of the test."""

    def new_run(run_id: str = "", **fields: str) -> Run:
        return Run(server, run_id or request.node.name, **fields)

    return new_run


@pytest.fixture
def empty_server(tmp_path: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path) as server:
        yield server
