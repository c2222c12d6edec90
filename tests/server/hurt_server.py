"""`trainvitals serve` with a trouble built in, for tests that cannot make it from outside.

python hurt_server.py die=1 serve ...      is killed between the first commit of frames and their ack
python hurt_server.py jobs=2 serve ...     has room for two jobs in the writer's queue
python hurt_server.py pages=60 serve ...   has a disk for so many pages, until SIGUSR1 makes it larger
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from trainvitals_server import cli
from trainvitals_server.store import database
from trainvitals_server.store.database import Database
from trainvitals_server.store.runs import Appended


class DeadlyFuture(Future[Any]):
    """What the writer resolves after its commit; that of the last commit in store ends the process."""

    commits_left = 0

    def set_result(self, result: object) -> None:
        if isinstance(result, Appended) and result.stored:
            DeadlyFuture.commits_left -= 1
            if DeadlyFuture.commits_left == 0:
                sys.stdout.write(f"committed up to {result.acked_seq}\n")
                sys.stdout.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        super().set_result(result)


def die_after(commits: int) -> None:
    DeadlyFuture.commits_left = commits
    database.Future = DeadlyFuture  # type: ignore[attr-defined]


def narrow_queue(jobs: int) -> None:
    defaults = Database.__init__.__kwdefaults__
    assert defaults is not None
    defaults["queue_jobs"] = jobs


def small_disk(pages: int) -> None:
    connect = database._connect

    def connect_small(path: Path, *, read_only: bool = False) -> Any:  # noqa: ANN401 - as the real one
        connection = connect(path, read_only=read_only)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        if not read_only:
            signal.signal(signal.SIGUSR1, lambda *_: connection.execute("PRAGMA max_page_count = 100000"))
        return connection

    database._connect = connect_small


TROUBLES: dict[str, Callable[[int], None]] = {"die": die_after, "jobs": narrow_queue, "pages": small_disk}

if __name__ == "__main__":
    name, number = sys.argv[1].split("=")
    TROUBLES[name](int(number))
    sys.exit(cli.main(sys.argv[2:]))
