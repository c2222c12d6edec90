"""Live vital signs of a training run, streamed from Keras.

`HealthReporter` is for `fit`, `Reporter` for your own loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainvitals.loop import Reporter
    from trainvitals.reporter import HealthReporter

__all__ = ["HealthReporter", "Reporter", "__version__"]
__version__ = "0.1.0"

_HOMES = {"HealthReporter": "trainvitals.reporter", "Reporter": "trainvitals.loop"}


def __getattr__(name: str) -> object:
    """Import a public class on first use (PEP 562), so that importing the package costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module
    from importlib.util import find_spec

    home = _HOMES[name]
    if name == "Reporter" and find_spec("tensorflow") is None:
        home = "trainvitals.numpy_loop"  # the same, measured by numpy
    return getattr(import_module(home), name)
