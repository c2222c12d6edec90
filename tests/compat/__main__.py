"""`scripts/compat [NAME...]`: train in each supported version of Keras, in an environment of its own."""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compat.environments import ENVIRONMENTS, TESTS, Environment
from server_process import running_server

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
FOLDER = ROOT / ".compat"
STAMP = ".installed"
PACKAGES = ("python", "tensorflow", "keras", "tf_keras", "jax", "numpy")
_VERSIONS = """
import importlib.metadata, platform, sys
for name in sys.argv[1:]:
    try:
        print(name, platform.python_version() if name == "python" else importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pass
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a row of the table says."""

    name: str
    versions: str
    result: str
    is_good: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Check what was asked for, print the table, and return the exit code."""
    names = [one.name for one in ENVIRONMENTS]
    parser = argparse.ArgumentParser(prog="scripts/compat", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names)}; else all")
    args = parser.parse_args(argv)
    if unknown := set(args.names) - set(names):
        parser.error(f"no environment is called {unknown.pop()}; there are {', '.join(names)}")
    wanted = [one for one in ENVIRONMENTS if not args.names or one.name in args.names]
    with (
        tempfile.TemporaryDirectory(prefix="trainvitals-compat-") as folder,
        running_server(Path(folder) / "data") as server,
    ):
        outcomes = [_check(one, server.url, Path(folder)) for one in wanted]
    sys.stdout.write(_table(outcomes))
    return 0 if all(one.is_good for one in outcomes) else 1


def _check(environment: Environment, url: str, folder: Path) -> Outcome:
    python = _install(environment)
    sys.stderr.write(f"--- {environment.name}\n")
    sys.stderr.flush()
    report = folder / f"{environment.name}.txt"
    command = [str(python), "-m", "pytest", "-q", "-c", str(HERE / "pytest.ini"), *environment.tests]
    environ = _environ(environment, url, folder)
    with report.open("w") as file:
        done = subprocess.run(
            command, cwd=HERE, env=environ, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    lines = report.read_text().splitlines()
    result = lines[-1].strip("= ") if lines else "nothing was run"
    is_good = done.returncode == 0 and "skipped" not in result
    if not is_good:
        sys.stderr.write("\n".join(lines) + "\n")
    return Outcome(environment.name, _versions(python), result, is_good)


def _environ(environment: Environment, url: str, folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINVITALS_")}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("client_lib", "server", "tests")),
        "PYTHONDONTWRITEBYTECODE": "1",
        "KERAS_BACKEND": environment.backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "TRAINVITALS_SPOOL": str(folder / "spool"),
        "TRAINVITALS_COMPAT_URL": url,
        "TRAINVITALS_COMPAT_KERAS": environment.keras,
    }


def _install(environment: Environment) -> Path:
    """Make the virtual environment, once for each list of requirements; return its python."""
    folder = FOLDER / environment.folder
    python = folder / "bin" / "python"
    project = (ROOT / "pyproject.toml").read_text()
    want = hashlib.sha256(repr((environment.requirements, TESTS, project)).encode()).hexdigest()
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text() == want:
        return python
    sys.stderr.write(f"--- installing {', '.join(environment.requirements)}\n")
    sys.stderr.flush()
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--upgrade"]
    subprocess.run([*pip, *environment.requirements, *TESTS], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--editable", str(ROOT)], check=True)
    stamp.write_text(want)
    return python


def _versions(python: Path) -> str:
    done = subprocess.run(
        [str(python), "-c", _VERSIONS, *PACKAGES], capture_output=True, text=True, check=True
    )
    return ", ".join(done.stdout.splitlines())


def _table(outcomes: Sequence[Outcome]) -> str:
    rows = [
        ("environment", "versions", "result"),
        *((one.name, one.versions, one.result) for one in outcomes),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
