"""The Chromium of this machine, started for tests and for pictures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """Run it for a while."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    assert path, f"this needs one of {', '.join(NAMES)}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()
