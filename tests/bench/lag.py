"""Lag: how late an event loop comes back to a task that sleeps.

`python -m bench.lag FILE` watches a loop that has nothing else to do, until it is terminated: what a load on
the same cores does to any loop, whatever it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np

from bench.result import Floats, child_environ

SLEEP_S = 0.005
TIMEOUT_S = 10.0


@contextlib.asynccontextmanager
async def watched(into: Path) -> AsyncIterator[None]:
    """Watch the loop that runs for as long as the block lasts; write when each sleep ended and how late."""
    lags: list[tuple[float, float]] = []
    task = asyncio.create_task(_watch(lags))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        into.write_bytes(np.asarray(lags).tobytes())


async def _watch(lags: list[tuple[float, float]]) -> None:
    while True:
        asked = time.perf_counter() + SLEEP_S
        await asyncio.sleep(SLEEP_S)
        lags.append((time.time(), time.perf_counter() - asked))


@contextlib.contextmanager
def bare_loop(into: Path) -> Iterator[None]:
    """Watch a loop in a process of its own that does nothing but sleep, for as long as the block lasts."""
    command = [sys.executable, "-m", "bench.lag", str(into)]
    with subprocess.Popen(command, env=child_environ(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def lags_between(file: Path, begin: float, end: float) -> Floats:
    """Return the lags in `file` of the sleeps that ended between two unix times."""
    ended, late = np.frombuffer(file.read_bytes()).reshape(-1, 2).T
    return late[(ended >= begin) & (ended <= end)]


async def _sleep_until_terminated(into: Path) -> None:
    is_over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_over.set)
    async with watched(into):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await is_over.wait()


if __name__ == "__main__":
    asyncio.run(_sleep_until_terminated(Path(sys.argv[1])))
