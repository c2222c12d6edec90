"""`python -m bench`: measure, print, and write the page of the documents on request."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import chart, detect, ingest, latency, start, step_cost
from bench.result import Result, machine

PARTS: dict[str, Callable[[bool], list[Result]]] = {
    "start": start.run,
    "ingest": ingest.run,
    "chart": chart.run,
    "detect": detect.run,
    "latency": latency.run,
    "step_cost": step_cost.run,
}
PAGE = Path(__file__).parents[2] / "docs/benchmarks.md"
HEAD = """# Benchmarks

`scripts/bench` measures these; `scripts/bench --write` writes this page. Measured on {machine}, with
everything on that one machine at the same time.

| what | measured | how |
|---|---|---|
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the parts that are named, or all."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("part", nargs="*", choices=[[], *PARTS], help="what to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="see that it works; the figures mean little")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    args = parser.parse_args(argv)
    results: list[Result] = []
    for name in args.part or PARTS:
        found = PARTS[name](args.quick)
        results += found
        for result in found:
            sys.stdout.write(f"{result.what}: {result.figure}\n    {result.method}\n")
            sys.stdout.flush()
    if args.write:
        PAGE.write_text(render(results))
    return 0


def render(results: Sequence[Result]) -> str:
    """Return the page."""
    rows = (f"| {result.what} | {result.figure} | {result.method} |\n" for result in results)
    return HEAD.format(machine=machine()) + "".join(rows)


if __name__ == "__main__":
    sys.exit(main())
