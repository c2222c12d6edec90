"""What is told of optimizers and losses, also of those that do not tell it themselves."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from trainvitals.probe.environment import describe_loss, optimizer_settings

pytestmark = pytest.mark.tensorflow


class Silent(keras.optimizers.SGD):  # type: ignore[misc]
    """Says nothing of itself, as what was never meant to be saved."""

    def get_config(self) -> dict[str, Any]:
        raise AttributeError("it has none")


class SilentLoss(keras.losses.Loss):  # type: ignore[misc]
    """The same of a loss."""

    def get_config(self) -> dict[str, Any]:
        raise AttributeError("it has none")


def test_a_part_of_the_users_without_settings_is_named_all_the_same() -> None:
    assert optimizer_settings(Silent(0.1)) == {}
    wrapped = optimizer_settings(keras.optimizers.LossScaleOptimizer(Silent(0.1), initial_scale=8.0))
    assert wrapped == {}  # the scaler's own are told with those of what it wraps
    assert optimizer_settings(keras.optimizers.SGD) == {}  # a class, which is no optimizer
    assert describe_loss(SilentLoss()) == "SilentLoss"
