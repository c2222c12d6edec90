"""Readers: one file for each form of a training log; each gives its rows, and judges nothing."""

from __future__ import annotations

from trainvitals_server.readers.folder import Run, runs_of
from trainvitals_server.readers.formats import is_log, read_rows
from trainvitals_server.readers.row import CutOff, NothingToJudge, Place, Row, UnreadableLog, printable

__all__ = [
    "CutOff", "NothingToJudge", "Place", "Row", "Run", "UnreadableLog", "is_log", "printable", "read_rows",
    "runs_of",
]  # fmt: skip
