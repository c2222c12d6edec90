"""`python -m scoring.one_program FILE URL RUN_ID`: runs it under the reporter, prints its steps."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import keras

from trainvitals import HealthReporter, Reporter


class CountingCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the batches of a fit."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Count one."""
        self.steps += 1


class CountingReporter:
    """Counts the steps that a loop of its own reports."""

    def __init__(self, reporter: Reporter) -> None:
        self.steps = 0
        self._reporter = reporter

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (whatever the reporter has)
        return getattr(self._reporter, name)

    def step(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """Count one and report it."""
        self.steps += 1
        return self._reporter.step(*args, **options)


def main() -> int:
    """Run the program."""
    path, url, run_id = sys.argv[1:]
    program = _load(Path(path))
    if hasattr(program, "run"):
        callback = CountingCallback()
        program.run([HealthReporter(url, project="programs", name=run_id, run_id=run_id), callback])
        steps = callback.steps
    else:
        with Reporter(url, project="programs", name=run_id, run_id=run_id) as reporter:
            counting = CountingReporter(reporter)
            program.run_custom(counting)
            steps = counting.steps
    sys.stdout.write(f"\n{steps}\n")
    return 0


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
