"""The command `trainvitals replay BUNDLE`: run a failing step again and say what it did."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("bundle", type=Path, help="folder that a reporter wrote when a step went non-finite")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument(
        "--script",
        type=Path,
        metavar="FILE",
        help="program that makes the model, run up to where it calls fit, or reporter.step in a loop "
        "(default: the one that trained)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the report; return 0, or 2 if the step could not be run."""
    if importlib.util.find_spec("tensorflow") is None:
        sys.stderr.write("replay needs the TensorFlow of the training: run it in that environment\n")
        return 2
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from trainvitals.autopsy import bundle as bundles
    from trainvitals.autopsy.examine import examine
    from trainvitals.autopsy.line import line_of
    from trainvitals.autopsy.rebuild import NoModel, scene_of

    try:
        bundle = bundles.read(args.bundle)
    except OSError as error:
        return _refused(args.bundle, str(error))
    except Exception as error:  # of a damaged file: of the archive, of JSON, of what does not fit together
        return _refused(args.bundle, f"it is no whole bundle ({_first_line(error)})")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's program prints is no report
            report = examine(scene_of(bundle, args.script))
    except (OSError, ValueError, KeyError, TypeError, NoModel) as error:
        return _refused(args.bundle, str(error))
    sys.stdout.write(json.dumps(report.to_data()) + "\n" if args.json else line_of(report) + "\n")
    return 0


def _refused(folder: Path, why: str) -> int:
    sys.stderr.write(f"cannot replay {folder}: {why}\n")
    return 2


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
