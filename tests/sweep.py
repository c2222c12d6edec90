"""Many short runs of one search, one after the other in one process: `python sweep.py URL SPOOL COUNT STEPS`.

To be run, not imported: it hides TensorFlow, so that loops are measured by numpy, which is quick.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

sys.modules["tensorflow"] = None  # type: ignore[assignment]

import numpy as np  # noqa: E402 - what comes before is the point

from trainvitals import Reporter  # noqa: E402

WORKERS = 4  # trials that run at once, as a search on a large machine does
GROUP = "search"


def trial(number: int, url: str, spool: str, steps: int) -> None:
    """Report a run whose numbers tell which one it is; nobody waits for its end."""
    variables = [np.zeros(2), np.zeros(1)]
    with Reporter(
        url, project="sweep", group=GROUP, run_id=f"trial-{number}", spool_dir=spool, console=False
    ) as reporter:
        for step in range(steps):
            gradients = [np.array([3.0, 4.0]) * (number + 1), np.array([float(step)])]
            reporter.step(
                loss=number + step / 64,
                gradients=gradients,
                variables=variables,
                loss_scale=2.0,
                metrics={"accuracy": step / 50},
            )


def main(url: str, spool: str, count: int, steps: int) -> None:
    """Make all of them, several at a time."""
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda number: trial(number, url, spool, steps), range(count)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
