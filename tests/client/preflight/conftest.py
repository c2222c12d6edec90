"""A preflight's test may set a dtype policy; the next one begins with Keras's own and with the same seed."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest


@pytest.fixture
def default_policy() -> Iterator[None]:
    """Seed Keras's random numbers, and put back the dtype policy at the end."""
    keras.utils.set_random_seed(1)
    yield
    keras.config.set_dtype_policy("float32")
