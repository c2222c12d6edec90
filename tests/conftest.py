"""What every test gets: one asyncio backend, repeatable generated examples, a quiet TensorFlow on the CPU."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Before any test imports TensorFlow: it reads these once. A GPU would turn XLA on and change what is tested.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# What a developer has set for a real server must not lead a test's reporter there.
for name in [name for name in os.environ if name.startswith("TRAINVITALS_")]:
    del os.environ[name]

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests on asyncio, as the server does."""
    return "asyncio"
