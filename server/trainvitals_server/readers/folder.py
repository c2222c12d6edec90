"""Folder: which of the logs that lie in a folder belong to one run.

TensorBoard's writers begin another event file in each life of a run, and Keras writes training and
validation into folders of their own (`logdir/train`, `logdir/validation`): all of that is one run. Every
other log is one by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trainvitals_server.readers.event_file import VALIDATION_FOLDERS
from trainvitals_server.readers.formats import is_event_file

TRAINING_FOLDERS = frozenset({"train", "training"})


class Run(NamedTuple):
    """The files of one run, in the order in which they were begun; `path` stands for all of them."""

    path: Path
    parts: tuple[Path, ...]


def runs_of(files: Iterable[Path]) -> list[Run]:
    """Return the runs that these files hold, in the order of their first file."""
    groups: dict[Path, list[Path]] = {}
    for file in sorted(files):
        groups.setdefault(_run_folder(file) if is_event_file(file) else file, []).append(file)
    return [
        # The name of an event file begins with the time of its birth.
        Run(parts[0] if len(parts) == 1 else path, tuple(sorted(parts, key=lambda part: (part.name, part))))
        for path, parts in groups.items()
    ]


def _run_folder(file: Path) -> Path:
    folder = file.parent
    return folder.parent if folder.name.lower() in TRAINING_FOLDERS | VALIDATION_FOLDERS else folder
