"""Source: the bytes and lines of a file, gzipped or not, with how far one has read."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TextIO, cast

from trainvitals_server.readers.row import CutOff, UnreadableLog

MAX_LINE_CHARS = 1 << 24  # nobody logs 16 MB a step; without a bound one line could take all memory
GZIP_MAGIC = b"\x1f\x8b"
BUFFER_BYTES = 1 << 18

Watch = Callable[[int], None]  # called with how many bytes were read since the last call


class _WatchedFile(io.FileIO):
    def __init__(self, path: Path, watch: Watch) -> None:
        super().__init__(path)
        self._watch = watch

    def readinto(self, buffer: bytearray | memoryview) -> int | None:  # type: ignore[override]
        count = super().readinto(buffer)
        self._watch(count or 0)
        return count


@dataclass(frozen=True, slots=True)
class Source:
    """An open log."""

    path: Path
    stream: IO[bytes]
    _closing: ExitStack

    def lines(self) -> Lines:
        """Return its lines, as text."""
        text = self._closing.enter_context(_text(self.stream))
        return Lines(self.path, text)


@contextmanager
def open_source(path: Path, watch: Watch) -> Iterator[Source]:
    """Open a file; one that begins like gzip is decompressed, whatever it is called."""
    with ExitStack() as closing:
        raw = closing.enter_context(_WatchedFile(path, watch))
        buffered = closing.enter_context(io.BufferedReader(raw, BUFFER_BYTES))
        stream: IO[bytes] = buffered
        if buffered.peek(2).startswith(GZIP_MAGIC):
            stream = cast("IO[bytes]", closing.enter_context(gzip.GzipFile(fileobj=buffered)))
        yield Source(path, stream, closing)


def _text(stream: IO[bytes]) -> io.TextIOWrapper:
    try:
        head = stream.peek(2) if isinstance(stream, io.BufferedReader | gzip.GzipFile) else b""
    except (OSError, EOFError, zlib.error):
        head = b""  # whoever reads the lines is told
    is_wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # as PowerShell writes it
    encoding, errors = ("utf-16", "replace") if is_wide else ("utf-8-sig", "surrogateescape")
    return io.TextIOWrapper(stream, encoding=encoding, errors=errors, newline="")


class Lines:
    """The lines of a text, with the number of the last one; bytes that are no UTF-8 stay recognisable."""

    def __init__(self, path: Path, text: TextIO) -> None:
        self.number = 0
        self.is_cut = False  # whether the last line had no end
        self._path, self._text = path, text

    def __iter__(self) -> Iterator[str]:
        """Yield the lines.

        Raises:
            CutOff: where compressed data ends in the middle.
            UnreadableLog: at a line that is too long, or where compressed data is broken.
        """
        while line := self._next():
            self.number += 1
            self.is_cut = not line.endswith(("\n", "\r"))
            if len(line) >= MAX_LINE_CHARS:
                raise UnreadableLog(self._path, "the line is too long for a training log", self.number)
            yield line

    def _next(self) -> str:
        try:
            return self._text.readline(MAX_LINE_CHARS)
        except EOFError as error:
            raise CutOff(self._path, "the compressed data ends too early", self.number + 1) from error
        except (zlib.error, gzip.BadGzipFile) as error:
            raise UnreadableLog(
                self._path, f"the compressed data is broken: {error}", self.number + 1
            ) from error
