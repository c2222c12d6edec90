"""Formats: which file is read how, by its name; so a folder can hold other files too."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from trainvitals_server.readers.delimited import read_delimited
from trainvitals_server.readers.event_file import read_events
from trainvitals_server.readers.json_text import read_json_document, read_json_lines
from trainvitals_server.readers.row import CutOff, Row, UnreadableLog
from trainvitals_server.readers.source import Source, Watch, open_source

Reader = Callable[[Source], Iterator[Row]]

EVENT_FILE = "tfevents"  # in the middle of the name; what follows is the time, the host and more
TRAINER_STATE = "trainer_state.json"
READERS: dict[str, Reader] = {
    ".csv": read_delimited, ".tsv": read_delimited, ".jsonl": read_json_lines, ".ndjson": read_json_lines,
    ".json": read_json_document,
}  # fmt: skip


def is_event_file(path: Path) -> bool:
    """Whether a file is one of TensorBoard's, by its name."""
    return EVENT_FILE in path.name.removesuffix(".gz")


def is_log(path: Path) -> bool:
    """Whether a file that lies in a folder looks like a log; of documents only a trainer's state does."""
    name = path.name.removesuffix(".gz")
    if is_event_file(path) or name == TRAINER_STATE:
        return True
    return Path(name).suffix in READERS and not name.endswith(".json")


def read_rows(path: Path, watch: Watch) -> Generator[Row, None, None]:
    """Yield the rows of a log; what has no name we know is taken for a CSV file.

    Raises:
        UnreadableLog: where it is no log of its form.
        OSError: if the file cannot be opened or read.
    """
    try:
        with open_source(path, watch) as source:
            yield from reader_of(path)(source)
    except EOFError as error:
        raise CutOff(path, "the compressed data ends too early") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableLog(path, f"the compressed data is broken: {error}") from error


def reader_of(path: Path) -> Reader:
    """Return what reads a file of this name."""
    name = path.name.removesuffix(".gz")
    return read_events if is_event_file(path) else READERS.get(Path(name).suffix.lower(), read_delimited)
