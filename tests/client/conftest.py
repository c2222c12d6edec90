"""What a test's reporter keeps on disk must not go where the user's own does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _spool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINVITALS_SPOOL", str(tmp_path_factory.mktemp("spool")))
        yield
