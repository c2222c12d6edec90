"""Entry: the texts of one cause. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One cause. `title` completes the sentence "Most likely ..."."""

    title: str
    fix: str
    snippet: str = ""
