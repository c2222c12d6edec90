"""Owner: who writes into a spool folder, so that `sync` leaves a living session alone.

A file with host, process id and, where the system tells it, the time at which that process started. No file
locks: they differ between systems, and a network disk may not have them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

_OWNER = "owner"


def claim(directory: Path) -> bool:
    """Make this process the owner of the folder; return False when a living one is.

    Raises:
        OSError: if the folder cannot be written.
    """
    for _ in range(2):
        try:
            with (directory / _OWNER).open("x", encoding="utf-8") as file:
                file.write(_identity(os.getpid()))
            return True
        except FileExistsError:
            if is_owned(directory):
                return False
            release(directory)
    return False


def release(directory: Path) -> None:
    """Give the folder up."""
    with contextlib.suppress(OSError):  # gone or read-only; a dead owner is recognised anyway
        (directory / _OWNER).unlink(missing_ok=True)


def is_owned(directory: Path) -> bool:
    """Return whether a living process owns the folder; one of another machine is taken to be alive."""
    try:
        words = (directory / _OWNER).read_text("utf-8").split()
    except OSError:
        return False
    if len(words) < 2 or not words[1].isdigit():
        return False  # cut off while it was written: its process died then
    host, pid = words[0], int(words[1])
    if host != _host():
        return True
    return _is_alive(pid) and _identity(pid).split() == words


def _identity(pid: int) -> str:
    return f"{_host()} {pid} {_started(pid)}"


def _host() -> str:
    return socket.gethostname().replace(" ", "-") or "localhost"


def _started(pid: int) -> str:
    """Return when the process started, as its system says it: a process id is given out again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return "-"
    return stat.rpartition(")")[2].split()[19]


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":
        return _is_alive_on_windows(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True


def _is_alive_on_windows(pid: int) -> bool:
    """Ask without touching it: there os.kill(pid, 0) would send Ctrl-C."""
    import ctypes

    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]
    handle = kernel.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
    if not handle:
        return bool(kernel.GetLastError() == 5)  # access denied: it lives
    code = ctypes.c_ulong()
    kernel.GetExitCodeProcess(handle, ctypes.byref(code))
    kernel.CloseHandle(handle)
    return code.value == 259  # STILL_ACTIVE
