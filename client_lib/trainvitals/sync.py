"""The command `trainvitals sync DIR`: upload what reporters left in their spool, and delete what arrived.

May be run twice, and while other sessions write to the same directory: a folder that a living process owns
is left alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from trainvitals import wire
from trainvitals.backlog import Backlog
from trainvitals.courier import Courier
from trainvitals.gate import Gate
from trainvitals.owner import claim, is_owned, release
from trainvitals.spool import Spool, default_directory, read_address, read_head, remove, sessions
from trainvitals.transport import NetworkTransport, Transport

MAX_TRIES = 4  # within about three seconds: a person waits for the command, and can call it again
DEFAULT_URL = "http://127.0.0.1:8765"


@dataclass(slots=True)
class Report:
    """What became of one session's spool."""

    run: str
    sent: int = 0
    already_there: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    left: int = 0
    trouble: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the server has everything there was."""
        return not self.trouble and not self.left

    def __str__(self) -> str:
        words = f"{self.run}: {self.sent} frames sent, {self.already_there} already there"
        if self.lost:
            words += ", lost: " + ", ".join(f"{count} {why}" for why, count in sorted(self.lost.items()))
        if self.left:
            words += f", {self.left} left"
        return words + (f": {self.trouble}" if self.trouble else "")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        type=Path,
        default=default_directory(os.environ),
        help="a spool directory, or one session in it (default: %(default)s)",
    )
    parser.add_argument(
        "--url",
        help="where the server is (default: the one that each session was made for; where that is not known"
        f" TRAINVITALS_URL, or {DEFAULT_URL})",
    )
    parser.add_argument(
        "--token",
        default=os.environ.get("TRAINVITALS_TOKEN"),
        help="access token (default: TRAINVITALS_TOKEN)",
    )


def run(args: argparse.Namespace) -> int:
    """Upload every session below the directory; return 0 when everything is on the server."""
    is_usual = args.directory == default_directory(os.environ)  # made by the first session that needs it
    if not args.directory.is_dir() and not is_usual:
        sys.stderr.write(f"trainvitals sync: there is no directory {args.directory}\n")
        return 2
    try:
        NetworkTransport(args.url or DEFAULT_URL)
    except ValueError as error:
        sys.stderr.write(f"trainvitals sync: {error}\n")
        return 2
    folders = sessions(args.directory)
    if not folders:
        sys.stdout.write(f"nothing to send in {args.directory}\n")
    is_complete = True
    for folder in folders:
        url = args.url or read_address(folder) or os.environ.get("TRAINVITALS_URL") or DEFAULT_URL
        report = _send(folder, url, args.token)
        sys.stdout.write(f"{report} -> {wire.clip(url)}\n")
        is_complete &= report.is_done
    return 0 if is_complete else 1


def _send(folder: Path, url: str, token: str | None) -> Report:
    try:
        transport = NetworkTransport(url, token)
    except ValueError as error:
        return Report(folder.name, trouble=str(error))
    return upload(folder, transport)


def upload(folder: Path, transport: Transport, clock: Callable[[], float] = time.monotonic) -> Report:
    """Send one session's spool and delete it when everything is acknowledged."""
    if is_owned(folder):
        return Report(folder.name, trouble="skipped, a running process still writes there")
    try:
        hello, layouts = read_head(folder)
        if not claim(folder):
            return Report(folder.name, trouble="skipped, another sync is at it")
    except (OSError, wire.WireError) as error:
        return Report(folder.name, trouble=f"cannot be read: {error}")
    name = f"run {wire.clip(hello.run_id)}, session {wire.clip(hello.session_id)}"
    try:
        return _upload(Report(name), folder, hello, layouts, transport, clock)
    finally:
        release(folder)


def _upload(
    report: Report,
    folder: Path,
    hello: wire.Hello,
    layouts: dict[int, bytes],
    transport: Transport,
    clock: Callable[[], float],
) -> Report:
    spool = Spool.load(folder)
    backlog = Backlog(spool, last_seq=spool.last_seq, layouts=layouts)
    first = spool.first_seq or 1
    gate = Gate(lambda: backlog.acked_seq)
    gaps = _survey(backlog, first, gate)
    wake = threading.Event()
    courier = Courier(
        backlog,
        transport,
        lambda: wire.encode(replace(hello, late=True)),
        on_notice=lambda notice: None,
        wake=wake.set,
        salvage=gate.salvage,
    )
    _converse(courier, backlog, wake, clock)
    had = courier.welcome_seq or 0
    report.already_there = max(min(had, spool.last_seq) - first + 1, 0)
    report.sent = max(backlog.acked_seq - max(had, first - 1), 0)
    report.lost = Counter(gaps) + backlog.dropped
    report.left = backlog.last_seq - max(backlog.acked_seq, first - 1)
    if had < first - 1 and courier.welcome_seq is not None:
        report.lost["not_kept"] += first - 1 - had - sum(had < seq < first for seq in layouts)
    if courier.failure is not None and report.left:
        report.trouble = courier.failure.message
    if backlog.is_empty:
        remove(folder)
    return report


def _converse(courier: Courier, backlog: Backlog, wake: threading.Event, clock: Callable[[], float]) -> None:
    """Talk until everything is acknowledged, or the server cannot be had."""
    while not backlog.is_empty:
        now = clock()
        deadline = courier.step(now)
        failure = courier.failure
        if failure is not None and (failure.trouble != "unreachable" or courier.tries >= MAX_TRIES):
            break
        if deadline > now and not backlog.is_empty:
            wake.wait(min(deadline - now, 60.0))
            wake.clear()
    courier.close()


def _survey(backlog: Backlog, first_seq: int, gate: Gate) -> Counter[str]:
    """Count the frames that the spool knows to be lost, by reason; tell `gate` what the others bring."""
    lost: Counter[str] = Counter()
    for frame in backlog.frames_from(first_seq):
        if frame.kind not in ("gap", "steps"):
            continue
        message = wire.decode_client(frame.payload)
        if isinstance(message, wire.Steps):
            gate.note(message.columns, message.layer_columns, frame.seq)
        elif isinstance(message, wire.Gap):
            lost[message.reason] += message.last_seq - message.seq + 1
    return lost
