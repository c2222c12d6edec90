"""Row: what every reader gives, and the errors that say where a log cannot be read.

UnreadableLog
├── NothingToJudge   it can be read, but holds no series that a detector knows
└── CutOff           it ends in the middle of something; the rows before are good
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

MAX_SHOWN_CHARS = 60  # of a cell that is no number; some are whole documents

Place = int | str  # a line, or words for where there are no lines


class Row(NamedTuple):
    """The cells of one row by the names of their columns, and where they stand."""

    place: Place
    cells: Mapping[str, object]
    is_cut: bool = False  # the file ends in this row, without a line end


class UnreadableLog(ValueError):
    """A log that cannot be read; says where and why.

    `column` is the name of a column, or how many characters into the line.
    """

    def __init__(
        self, path: Path, reason: str, line: Place | None = None, column: str | int | None = None
    ) -> None:
        super().__init__(path, reason, line, column)
        self.path, self.reason, self.line, self.column = path, reason, line, column

    def __str__(self) -> str:
        """Return one line for a person."""
        place = (
            "" if self.line is None else f":{self.line}" if isinstance(self.line, int) else f", {self.line}"
        )
        if isinstance(self.column, int):
            place += f":{self.column}"
        elif self.column is not None:
            place += f", column {shown(self.column)}"
        return printable(f"{self.path}{place}: {self.reason}")


class NothingToJudge(UnreadableLog):
    """A file without any series that a detector reads; in a folder that is no reproach."""


class CutOff(UnreadableLog):
    """A log that ends in the middle of a line or record, as one does that is being written."""


def printable(text: str) -> str:
    """Return `text` without anything that could steer a terminal, or that UTF-8 cannot spell."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shown(cell: object) -> str:
    """Return a cell as a message shows it: short and printable."""
    text = printable(repr(cell))
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."
