"""Backups: keeps what `BackupAndRestore` deletes after an end that it takes for a good one."""

from __future__ import annotations

import gc
from typing import Any

from trainvitals.probe.kinds import is_a


class Backups:
    """The backups that were kept; `restore` lets their callbacks delete again."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def keep(self, beside: object) -> None:
        """Let the backup be kept by each `BackupAndRestore` in a list of callbacks with `beside` in it.

        A callback does not know its neighbours; whoever refers to it does.
        """
        for holder in gc.get_referrers(beside):
            if type(holder) is not list:
                continue
            for one in holder:
                if is_a(one, "BackupAndRestore") and getattr(one, "delete_checkpoint", False):
                    one.delete_checkpoint = False
                    self._kept.append(one)

    def restore(self) -> None:
        """Let the callbacks be as they were."""
        for one in self._kept:
            one.delete_checkpoint = True
        self._kept.clear()
