"""One training of the demo, in this process: `python -m trainvitals_server.demo.training PROGRAM RUN_ID`.

The server's address comes from `TRAINVITALS_URL`.
"""

from __future__ import annotations

import argparse
import importlib

from trainvitals import HealthReporter

PROJECT = "demo"


def main() -> None:
    """Train one program under a reporter."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("run_id")
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    program = importlib.import_module(f"trainvitals_server.demo.programs.{args.program}")
    tags = ["fixed"] if args.fixed else []
    reporter = HealthReporter(project=PROJECT, name=program.NAME, run_id=args.run_id, tags=tags)
    program.train(reporter, fixed=args.fixed)


if __name__ == "__main__":
    main()
