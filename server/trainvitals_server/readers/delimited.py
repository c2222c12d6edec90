"""Delimited text: comma, semicolon or tab between the cells, names in the first line."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from trainvitals_server.readers.row import Row, UnreadableLog
from trainvitals_server.readers.source import Source

DELIMITERS = ",;\t"


def read_delimited(source: Source) -> Iterator[Row]:
    """Yield the rows under the heading."""
    path, lines = source.path, source.lines()
    text = iter(lines)
    heading = next(text, "")
    delimiter = max(DELIMITERS, key=heading.count)
    names = [name.strip() for name in next(csv.reader([heading], delimiter=delimiter), [])]
    if not names:
        raise UnreadableLog(path, "it is empty")
    if all(_is_number(name) for name in names):
        raise UnreadableLog(path, "no names of columns in the first line, such as step,loss,grad_norm", 1)
    reader = csv.reader(text, delimiter=delimiter)
    try:
        for cells in reader:
            if len(cells) > len(names):
                reason = f"{len(cells)} cells under {len(names)} column names"
                raise UnreadableLog(path, reason, lines.number)
            if cells:
                yield Row(lines.number, dict(zip(names, cells, strict=False)), lines.is_cut)
    except csv.Error as error:
        raise UnreadableLog(path, str(error), lines.number) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
