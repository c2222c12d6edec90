"""Odd values: what cannot be reported is left out, counted and said once; what comes later goes on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from trainvitals import wire

MAX_SHOWN_CHARS = 120
ODD = (TypeError, ValueError, OverflowError)

T = TypeVar("T")

_log = logging.getLogger("trainvitals")


class LeftOut:
    """What was left out, by kind; the first of each kind is one line in the log."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, what: str) -> None:
        """Count one more `kind`, a noun; `what` says which and why."""
        if kind not in self._counts:
            _log.warning("left out: %s (said once)", what)
        self._counts[kind] += 1

    def sorted_out(self, kind: str, convert: Callable[[Any], T], value: object) -> T | None:
        """Return `value` as `convert` makes it; None where it is None, or odd and counted as a `kind`."""
        if value is None:
            return None
        try:
            return convert(value)
        except ODD as error:
            self.add(kind, f"{kind} {shown(value)}: {wire.clip(str(error))}")
            return None

    def take(self) -> str:
        """Return how many there were of each kind, and begin anew; empty where there was nothing."""
        found = ", ".join(f"{count} x {kind}" for kind, count in self._counts.items())
        self._counts.clear()
        return found and f"left out: {found}"


def as_number(value: object) -> float:
    """Return a single number of any make.

    Raises:
        TypeError, ValueError, OverflowError: if it is none.
    """
    if isinstance(value, str | bytes):
        raise TypeError(f"{shown(value)} is no number")
    refuse_masked(value)
    return float(value)  # type: ignore[arg-type]  # what it cannot take, it says


def refuse_masked(value: object) -> None:
    """Let nobody take a masked number, which is missing, for the 0 or NaN that lies below the mask.

    Raises:
        TypeError: if a part of `value` is masked.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise TypeError("a part of it is masked")


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return metrics by their names.

    Raises:
        TypeError: if it is no dict.
    """
    if not isinstance(value, Mapping):
        raise TypeError("they must be a dict")
    return value


def as_step(value: object) -> int:
    """Return the number of a step.

    Raises:
        TypeError, ValueError, OverflowError: if it is none.
    """
    number = int(value)  # type: ignore[call-overload]  # what it cannot take, it says
    if not 0 <= number < wire.MAX_STEP:
        raise ValueError(f"steps go from 0 to {wire.MAX_STEP - 1}")
    if isinstance(value, float) and value != number:
        raise ValueError("steps are whole numbers")
    return int(number)


def shown(value: object) -> str:
    """Return `value` as it may stand in a message; not even that may fail."""
    try:
        return wire.clip(repr(value), MAX_SHOWN_CHARS)
    except Exception:  # a user's own __repr__, or an integer of more digits than Python spells
        return f"a value of type {type(value).__name__}"
