"""A real server, a real Chromium, and a page on which every console error and refused load fails the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from e2e.chromium import SCHEMES, running_chromium
from e2e.pushed_run import Run
from server_process import ServerProcess, running_server

TIMEOUT_MS = 30_000.0  # generous: a busy machine compiles plotly for seconds
LOUD = ("error", "warning")
VIEWPORT: ViewportSize = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=TIMEOUT_MS)
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture(scope="session")
def contexts(browser: Browser) -> Mapping[str, BrowserContext]:
    """One profile for each theme: it keeps plotly's compiled bundle, which takes a second to compile."""
    return {scheme: browser.new_context(viewport=VIEWPORT, color_scheme=scheme) for scheme in SCHEMES}


@pytest.fixture
def open_page(contexts: Mapping[str, BrowserContext]) -> Iterator[Callable[..., Page]]:
    """Return a function that opens an address; at the end, the consoles of its pages must be clean.

    Complaints with the text `expected` in them are no failure.
    """
    complaints: list[str] = []
    pages: list[Page] = []

    def open_page(url: str, color_scheme: str = "light", expected: str = "ERR_ABORTED") -> Page:
        def complain(text: str) -> None:
            if expected not in text:  # by default: a page that was left does not need its icon
                complaints.append(text)

        page = contexts[color_scheme].new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", lambda message: complain(message.text) if message.type in LOUD else None)
        page.on("pageerror", lambda error: complain(str(error)))
        page.on("requestfailed", lambda request: complain(f"{request.failure}: {request.url}"))
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
