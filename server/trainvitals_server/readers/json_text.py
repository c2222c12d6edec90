"""JSON: one object a line, or one document with the rows in a list, such as `trainer_state.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainvitals_server.readers.row import CutOff, Row, UnreadableLog
from trainvitals_server.readers.source import Source

HISTORY = "log_history"
SUMMARY = "train_runtime"  # the last entry of a history: means over the whole training, not a row


def read_json_lines(source: Source) -> Iterator[Row]:
    """Yield one row a line; a last line without an end may be half written."""
    path, lines = source.path, source.lines()
    for line in lines:
        if not line.strip():
            continue
        try:
            item = _parse(path, line, lines.number)
        except UnreadableLog as error:
            if lines.is_cut:
                raise CutOff(path, error.reason, error.line, error.column) from error
            raise
        yield Row(lines.number, _row(path, item, lines.number), lines.is_cut)


def read_json_document(source: Source) -> Iterator[Row]:
    """Yield the rows of a document: a list of objects, or an object that holds one as its `log_history`."""
    path = source.path
    document = _parse(path, "".join(source.lines()), 1)
    rows = document.get(HISTORY) if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise UnreadableLog(path, f"no list of rows, and no {HISTORY} that holds one")
    for number, item in enumerate(rows):
        place = f"entry {number}"
        row = _row(path, item, place)
        if SUMMARY not in row:
            yield Row(place, row)


def _parse(path: Path, text: str, line: int) -> object:
    try:
        parsed: object = json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"no JSON: {error.msg}"
        raise UnreadableLog(path, reason, line + error.lineno - 1, error.colno) from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UnreadableLog(path, f"no JSON: {reason}", line) from error
    return parsed


def _row(path: Path, item: object, place: int | str) -> dict[str, object]:
    """Return the object's cells; those of an object inside it are named `outer/inner`."""
    if not isinstance(item, dict):
        raise UnreadableLog(path, f"a {type(item).__name__} where an object was expected", place)
    cells: dict[str, object] = {}
    for name, cell in item.items():
        if isinstance(cell, Mapping):
            cells |= {f"{name}/{inner}": value for inner, value in cell.items()}
        else:
            cells[name] = cell
    return cells
