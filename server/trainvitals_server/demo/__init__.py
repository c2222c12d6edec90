"""`trainvitals demo`: a server, four real trainings that report to it, and what it told about them."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from trainvitals_server.demo.server import DemoServer, ServerFailed
from trainvitals_server.demo.show import Show


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--once", action="store_true", help="end when the trainings are done")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, nothing else")
    parser.add_argument("--fixed", action="store_true", help="train with the fix of each incident applied")
    parser.add_argument("--port", type=int, default=0, help="port to serve on (default: a free one)")
    parser.add_argument("--data", type=Path, help="directory to keep the runs in (default: a temporary one)")


def run(args: argparse.Namespace) -> int:
    """Run the demo; return the exit code: 1 if a training could not be run."""
    console = Console(stderr=args.json, highlight=False, soft_wrap=True)
    if find_spec("tensorflow") is None:
        console.print("the demo trains with TensorFlow: pip install 'trainvitals[demo]'", markup=False)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server and the trainings must end with us
    with tempfile.TemporaryDirectory(prefix="trainvitals-demo-", ignore_cleanup_errors=True) as scratch:
        try:
            return _play(args, console, Path(scratch))
        except ServerFailed as error:
            console.print(str(error), markup=False)
            return 1
        except KeyboardInterrupt:
            return 0


def _play(args: argparse.Namespace, console: Console, scratch: Path) -> int:
    with DemoServer(args.data or scratch / "data", args.port, console) as server:
        show = Show(server.url, console, scratch)
        show.play(is_fixed=args.fixed)
        server.await_alerts()
        if args.json:
            sys.stdout.write(json.dumps(show.as_json()) + "\n")
            sys.stdout.flush()
        show.print_table()
        if not args.once:
            console.print(f"\nThe page stays at [bold]{server.url}[/bold] until Ctrl-C.")
            server.wait()
        return 0 if show.is_complete else 1
