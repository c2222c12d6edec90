"""The pictures of the documents, made anew from the demo's trainings in a real Chromium.

`PYTHONPATH=tests python -m e2e.pictures [folder]` takes some two minutes and writes into `docs/images`. Look
at each of them, in both themes, before it is kept.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, ViewportSize, expect

from e2e.chromium import SCHEMES, running_chromium
from server_process import ServerProcess, running_server

FOLDER = Path(__file__).parents[2] / "docs" / "images"
TALL: ViewportSize = {"width": 1280, "height": 1500}
FLAT: ViewportSize = {"width": 1280, "height": 460}
TIMEOUT_MS = 120_000.0
SETTLE_MS = 2500.0  # for what follows a moment behind: verdicts, charts that come into view, the heat map
LONGER = "from trainvitals_server.demo.programs import healthy; healthy.EPOCHS = 60"  # time for pictures
FAR = re.compile(r"Step\s*[1-9],\d{3}")  # a thousand steps at least


class Studio:
    """A page for each theme, and the folder that their pictures go to."""

    def __init__(self, browser: Browser, server: ServerProcess, folder: Path) -> None:
        self._url, self._folder = server.url, folder
        self._pages: dict[str, Page] = {
            scheme: browser.new_page(viewport=TALL, color_scheme=scheme, reduced_motion="reduce")
            for scheme in SCHEMES
        }

    def show(self, address: str, viewport: ViewportSize, text: str | re.Pattern[str]) -> None:
        """Open an address in both themes and wait until it says `text`."""
        for page in self._pages.values():
            page.set_viewport_size(viewport)
            page.goto(f"{self._url}{address}")
        for page in self._pages.values():
            expect(page.locator("#main")).to_contain_text(text)

    def wait_for(self, selector: str) -> None:
        """Wait until both pages show something."""
        for page in self._pages.values():
            expect(page.locator(selector)).to_be_visible()

    def take(self, name: str, selector: str = "") -> None:
        """Keep what the pages show, or one part of it."""
        for page in self._pages.values():
            if selector:
                page.locator(selector).evaluate("part => part.scrollIntoView({block: 'center'})")
            page.wait_for_timeout(SETTLE_MS / len(self._pages))
        for scheme, page in self._pages.items():
            path = self._folder / f"{name}-{scheme}.png"
            if selector:
                page.locator(selector).screenshot(path=path)
            else:
                page.screenshot(path=path)


def train(server: ServerProcess, program: str, folder: Path, begin: str = "pass") -> subprocess.Popen[bytes]:
    """Start one training of the demo, which has the name of its program, after the statement `begin`."""
    main = f"from trainvitals_server.demo import training; {begin}; training.main()"
    return subprocess.Popen(
        [sys.executable, "-c", main, program, program],
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", **os.environ,
             "TRAINVITALS_URL": server.url, "XDG_CACHE_HOME": str(folder)},  # some paths are in the pictures
        cwd=folder,
    )  # fmt: skip


def after(studio: Studio, server: ServerProcess, folder: Path) -> None:
    """Take the pages of trainings that went wrong, after the fact."""
    for program, incident in (("float16_mask", "Sudden NaN"), ("late_adam", "Optimizer epsilon too small")):
        assert train(server, program, folder).wait() == 0
        studio.show(f"/runs/{program}", TALL, incident)
        name = program.replace("_", "-")
        studio.take(name)
        studio.take(f"{name}-charts", "#charts")
        studio.take(f"{name}-layers", "#norms")


def live(studio: Studio, server: ServerProcess, folder: Path) -> None:
    """Take the page and the board while a healthy training is running."""
    assert train(server, "learning_rate", folder).wait() == 0
    with train(server, "healthy", folder, LONGER) as training:
        address = f"{server.url}/api/v1/runs/healthy"
        while httpx.get(address, trust_env=False).status_code != httpx.codes.OK:
            assert training.poll() is None
        studio.show("/runs/healthy", TALL, FAR)
        studio.wait_for("#norms canvas[aria-label]")
        studio.take("running")
        studio.show("/", FLAT, "1 running")
        studio.take("board-live")
        assert training.poll() is None, "it was over before its pictures were taken"
    studio.take("board")


def main() -> None:
    """Make them all."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    expect.set_options(timeout=TIMEOUT_MS)
    with (
        tempfile.TemporaryDirectory(prefix="demo-") as scratch,
        running_server(Path(scratch) / "data") as server,
        running_chromium() as browser,
    ):
        studio = Studio(browser, server, folder)
        after(studio, server, Path(scratch))
        live(studio, server, Path(scratch))


if __name__ == "__main__":
    main()
