"""Titles: what an incident's kind is called where people read it. The page's `words` says the same."""

from __future__ import annotations

TITLES = {"optimizer_epsilon": "Optimizer epsilon too small"}
SPELLING = {"nan": "NaN", "nonfinite": "non-finite"}


def title_of(kind: str) -> str:
    """Return a kind such as `sudden_nan` in words: Sudden NaN."""
    words = " ".join(SPELLING.get(word, word) for word in kind.split("_"))
    return TITLES.get(kind, words[:1].upper() + words[1:])
