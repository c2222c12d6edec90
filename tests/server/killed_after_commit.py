"""`trainvitals serve` that dies as by kill -9 between the commit of a client's frames and their ack.

python killed_after_commit.py COMMITS serve --port ...
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import Future
from typing import Any

from trainvitals_server import cli
from trainvitals_server.store import database
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


if __name__ == "__main__":
    DeadlyFuture.commits_left = int(sys.argv[1])
    database.Future = DeadlyFuture  # type: ignore[attr-defined]
    sys.exit(cli.main(sys.argv[2:]))
