"""A database of its own for each test of the alerts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trainvitals_server.store.database import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "alerts.db")
    yield opened
    opened.close()
