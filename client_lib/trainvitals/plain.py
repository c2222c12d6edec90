"""Plain: whether data of no fixed form can be written as JSON by everybody who gets it. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

MAX_DEPTH = 16  # of lists and tables in one another: what reads them goes down as deep
_SCALARS = (str, int, float, bytes, datetime)  # True and False are integers


def fault_of(data: dict[str, Any]) -> str:
    """Return what is wrong with the data, in words that go on from "data"; "" where nothing is."""
    level: list[object] = [data]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                for key in value:
                    if not isinstance(key, str):
                        return f"with a key that is a {type(key).__name__}"
                below += value.values()
            elif isinstance(value, list | tuple):
                below += value
            elif value is not None and not isinstance(value, _SCALARS):
                return f"with a {type(value).__name__}"
        level = below
    return f"deeper than {MAX_DEPTH} levels" if level else ""
