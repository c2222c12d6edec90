"""Spool: frames of one session on disk, for as long as the server has not acknowledged them.

    DIR/ordinals/<run>/<number>         a session of the run, for its next one to count on
    DIR/sessions/<run>/<session>/      owner (who writes), url (of the server that it was made for),
                                        head.frames (Hello, layouts), <first seq>.frames

A file is a magic word and records: length, CRC32, first and last seq, then the frame's bytes. A record that
is cut off or damaged ends its file; what followed it there is declared lost. Nothing is fsynced: the spool
outlives the process, not a power cut. Files here read no clock and start no thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trainvitals import wire
from trainvitals.backlog import Frame, frame_from, frame_of
from trainvitals.owner import claim, release

MAGIC = b"TVSPOOL1"
SEGMENT_BYTES = 1 << 20  # what is read at once, and the unit in which acknowledged frames leave the disk
MAX_BYTES = 512 << 20  # of one session; a day without a server for most models
MAX_ORDINALS = 2000  # runs whose sessions are counted: an empty file each, for ever
HEAD = "head.frames"
ADDRESS = "url"  # of the server that the session was made for
_LONGEST_BYTES = 8 * SEGMENT_BYTES  # no segment of ours grows so long; a file that does is none
_RECORD = struct.Struct("<IIQQ")  # length, crc, first seq, last seq
_CHECKED = struct.Struct("<QQ")


@dataclass(slots=True)
class _Segment:
    path: Path
    first_seq: int
    last_seq: int
    size: int


def default_directory(environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Return where spools live unless told otherwise: `TRAINVITALS_SPOOL`, or the user's cache."""
    if chosen := environ.get("TRAINVITALS_SPOOL"):
        return Path(chosen)
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or ".")
    if platform == "win32":
        base = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "trainvitals" / "spool"


def session_directory(directory: Path, run_id: str, session_id: str) -> Path:
    """Return the folder of a session."""
    return directory / "sessions" / _file_name(run_id) / _file_name(session_id)


def sessions(directory: Path) -> list[Path]:
    """Return the folders of all sessions below `directory`, which may be one itself."""
    if (directory / HEAD).is_file():
        return [directory]
    return sorted(head.parent for head in directory.glob(f"**/{HEAD}"))


def next_ordinal(directory: Path, run_id: str, rank: int = 0) -> int:
    """Count one more session of the run and return its number: 0, 1, ...; 0 where nothing can be written."""
    folder = directory / "ordinals" / _file_name(f"{run_id}#{rank}" if rank else run_id)
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            _thin_out(folder.parent)
        while True:
            last = max((int(path.name) for path in folder.iterdir()), default=-1)
            with contextlib.suppress(FileExistsError):  # another session of the run took that number
                (folder / str(last + 1)).touch(exist_ok=False)
                return last + 1
    except (OSError, ValueError):
        return 0


def _thin_out(directory: Path) -> None:
    """Forget the runs that were started longest ago, once there are very many."""
    folders = list(directory.iterdir())
    if len(folders) > MAX_ORDINALS:
        folders.sort(key=lambda folder: folder.stat().st_mtime)
        for folder in folders[: len(folders) // 2]:
            shutil.rmtree(folder, ignore_errors=True)


class Spool:
    """One session's folder, made when the first frame is kept; disk trouble is counted, never raised."""

    def __init__(
        self,
        directory: Path,
        head: Callable[[], list[bytes]],
        *,
        url: str = "",
        max_bytes: int = MAX_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.directory = directory
        self._url = url
        self.troubles: Counter[str] = Counter()
        self.written_bytes = 0
        self._head = head
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self._last_seq = 0
        self._file: BinaryIO | None = None
        self._is_open = False

    @classmethod
    def load(cls, directory: Path) -> Spool:
        """Return the spool that a session left behind; the caller has claimed its folder."""
        spool = cls(directory, list)
        spool._is_open = True
        paths = sorted(
            path for path in directory.glob("*.frames") if path.name != HEAD and path.stem.isdigit()
        )
        for index, path in enumerate(paths):
            first = int(path.stem)
            if index + 1 < len(paths):
                last = int(paths[index + 1].stem) - 1
            else:
                last = max((frame.last_seq for frame in _read(path, first, None)), default=first - 1)
            if last >= first:
                spool._segments.append(_Segment(path, first, last, path.stat().st_size))
                spool._last_seq = last
        return spool

    @property
    def first_seq(self) -> int | None:
        """The lowest seq that is kept, or None."""
        return self._segments[0].first_seq if self._segments else None

    @property
    def last_seq(self) -> int:
        """The highest seq that was ever kept; 0 at first."""
        return self._last_seq

    @property
    def size(self) -> int:
        """How many bytes the segments take."""
        return sum(segment.size for segment in self._segments)

    def append(self, frames: list[Frame]) -> int:
        """Keep frames in order; return how many could be."""
        if not frames or not self._open():
            return 0
        kept = 0
        for chunk in self._chunks(frames):
            data = b"".join(map(_record, chunk))
            if self.size + len(data) > self._max_bytes:
                self.troubles["spool_full"] += 1
                break
            if not self._write(chunk, data):
                break
            kept += len(chunk)
        return kept

    def read(self, seq: int) -> list[Frame]:
        """Return the frames of the segment that covers `seq`; what is damaged there is a `Gap`."""
        for segment in self._segments:
            if segment.first_seq <= seq <= segment.last_seq:
                return list(_read(segment.path, segment.first_seq, segment.last_seq))
        return []

    def discard(self, acked_seq: int) -> None:
        """Delete the segments that are acknowledged to the last frame."""
        while self._segments and self._segments[0].last_seq <= acked_seq:
            if len(self._segments) == 1:
                self._close_file()
            _unlink(self._segments.pop(0).path)

    def remember(self, payload: bytes) -> None:
        """Add a layout to the head, once there is one."""
        if self._is_open:
            try:
                with (self.directory / HEAD).open("ab") as file:
                    file.write(_record(frame_from(payload)))
            except (OSError, wire.WireError):
                self.troubles["spool_write"] += 1

    def close(self) -> None:
        """Release the folder, and delete it when nothing is left in it to send."""
        self._close_file()
        if not self._is_open:
            return
        self._is_open = False
        release(self.directory)
        if not self._segments:
            remove(self.directory)

    def _open(self) -> bool:
        if self._is_open:
            return True
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not claim(self.directory):
                self.troubles["spool_in_use"] += 1
                return False
            (self.directory / ADDRESS).write_text(self._url, encoding="utf-8")
            write_head(self.directory, self._head())
        except OSError:
            self.troubles["spool_write"] += 1
            return False
        self._is_open = True
        return True

    def _chunks(self, frames: list[Frame]) -> Iterator[list[Frame]]:
        """Group frames so that no write makes a segment much longer than it should be."""
        chunk: list[Frame] = []
        size = 0
        for frame in frames:
            chunk.append(frame)
            size += len(frame.payload)
            if size >= self._segment_bytes // 4:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _write(self, frames: list[Frame], data: bytes) -> bool:
        segment = self._segments[-1] if self._file is not None else None
        if segment is None or segment.size >= self._segment_bytes or frames[0].seq != segment.last_seq + 1:
            segment = None
            self._close_file()
        try:
            if segment is None:
                path = self.directory / f"{frames[0].seq:016d}.frames"
                self._file = path.open("wb", buffering=0)
                segment = _Segment(path, frames[0].seq, frames[0].seq - 1, 0)
                data = MAGIC + data
            assert self._file is not None
            if self._file.write(data) != len(data):
                raise OSError("short write")
        except OSError:
            self.troubles["spool_write"] += 1
            self._undo(segment)
            return False
        if segment.last_seq < segment.first_seq:
            self._segments.append(segment)
        segment.last_seq = self._last_seq = frames[-1].last_seq
        segment.size += len(data)
        self.written_bytes += len(data)
        return True

    def _undo(self, segment: _Segment | None) -> None:
        """Take a half-written record away; the next write begins a segment of its own."""
        self._close_file()
        if segment is None:
            return
        if segment.last_seq < segment.first_seq:
            _unlink(segment.path)
            return
        try:
            os.truncate(segment.path, segment.size)
        except OSError:
            self.troubles["spool_truncate"] += 1  # the reader stops at the damaged record

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def write_head(directory: Path, payloads: list[bytes]) -> None:
    """Write the Hello and the layouts so far, all or nothing."""
    data = MAGIC
    for payload in payloads:
        crc = zlib.crc32(payload, zlib.crc32(_CHECKED.pack(0, 0)))
        data += _RECORD.pack(len(payload), crc, 0, 0) + payload
    fresh = directory / f"{HEAD}.new"
    fresh.write_bytes(data)
    fresh.replace(directory / HEAD)


def read_head(directory: Path) -> tuple[wire.Hello, dict[int, bytes]]:
    """Return the session's Hello, and its layouts by seq.

    Raises:
        OSError: if there is no head.
        wire.WireError: if it holds no Hello.
    """
    hello: wire.Hello | None = None
    layouts: dict[int, bytes] = {}
    for _, _, payload in _records((directory / HEAD).read_bytes()):
        message = wire.decode_client(payload)
        if isinstance(message, wire.Hello):
            hello = message
        elif isinstance(message, wire.Layout):
            layouts[message.seq] = payload
    if hello is None:
        raise wire.MalformedFrame(f"{directory / HEAD} holds no Hello")
    return hello, layouts


def read_address(directory: Path) -> str:
    """Return where the session's frames were to go; empty where that is not known."""
    try:
        return (directory / ADDRESS).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def remove(directory: Path) -> None:
    """Delete a session's folder, and its run's when that was the last."""
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):  # other sessions live there
        directory.parent.rmdir()


def _record(frame: Frame) -> bytes:
    span = _CHECKED.pack(frame.seq, frame.last_seq)
    crc = zlib.crc32(frame.payload, zlib.crc32(span))
    return _RECORD.pack(len(frame.payload), crc, frame.seq, frame.last_seq) + frame.payload


def _records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (seq, last_seq, payload) up to the first damage."""
    if not data.startswith(MAGIC):
        return
    offset = len(MAGIC)
    while offset + _RECORD.size <= len(data):
        size, crc, seq, last_seq = _RECORD.unpack_from(data, offset)
        payload = data[offset + _RECORD.size : offset + _RECORD.size + size]
        if len(payload) < size or zlib.crc32(payload, zlib.crc32(_CHECKED.pack(seq, last_seq))) != crc:
            return
        yield seq, last_seq, payload
        offset += _RECORD.size + size


def _read(path: Path, first_seq: int, last_seq: int | None) -> Iterator[Frame]:
    """Yield a segment's frames, in order; whatever is missing up to `last_seq` is one `Gap` at the end."""
    expected = first_seq
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST_BYTES)
    except OSError:
        data = b""
    for seq, last, payload in _records(data):
        if seq != expected:
            break
        try:
            yield frame_from(payload)
        except wire.WireError:
            break
        expected = last + 1
    if last_seq is not None and expected <= last_seq:
        yield frame_of(wire.Gap(seq=expected, last_seq=last_seq, reason="spool_corrupt"))


def _file_name(name: str) -> str:
    """Return a file name for any text: readable, and unlike that of any other text."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', name)[:60]}-{digest}"


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):  # held open by another program on Windows: it goes with its folder
        path.unlink(missing_ok=True)
