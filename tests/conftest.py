"""What every test gets: one asyncio backend, repeatable generated examples, a quiet TensorFlow on the CPU."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from typing import NoReturn

import pytest
from hypothesis import settings

# Before any test imports TensorFlow: it reads these once. A GPU would turn XLA on and change what is tested.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# What a developer has set for a real server must not lead a test's reporter there.
for name in [name for name in os.environ if name.startswith("TRAINVITALS_")]:
    del os.environ[name]

# Nor may its spools and bundles come into the developer's own cache.
_spools = tempfile.TemporaryDirectory(prefix="trainvitals-tests-", ignore_cleanup_errors=True)
os.environ["TRAINVITALS_SPOOL"] = _spools.name

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `scripts/test` ask that nothing is left out."""
    parser.addoption("--fail-on-skip", action="store_true", help="fail if any test was skipped")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files that drive a browser last: from its start to its end Playwright keeps an event loop
    running, and no asynchronous test could run its own. Files, since a process is given a file at a time;
    of them those with the most tests first, so that no process is left with a long one at the end.
    """
    driving = Counter(item.path for item in items if "browser" in getattr(item, "fixturenames", ()))
    items.sort(key=lambda item: (item.path in driving, -driving[item.path]))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that was to be whole, where a missing tool or device made a test skip itself."""
    if not session.config.getoption("--fail-on-skip"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("a test was skipped, and --fail-on-skip is on", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def no_failed_diagnosis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a diagnosis that fails fail the test, too: people are told the incident without it."""
    if request.module.__name__.endswith("test_plainly"):
        return

    def fail(incident: object, error: Exception) -> NoReturn:
        raise error

    monkeypatch.setattr("trainvitals_server.plainly.plain", fail)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests on asyncio, as the server does."""
    return "asyncio"
