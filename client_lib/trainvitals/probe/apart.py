"""Apart: how variables of ours are made while a function of the user's is traced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def apart(make: Callable[[], T]) -> T:
    """Return what `make` returns, called where no scope of the caller's holds: in a thread of its own.

    A variable that is made within a `tf.function`, even in `tf.init_scope`, counts as the function's own:
    the function is then traced twice, or refuses the variable. A strategy would make copies of it.
    """
    made: list[T] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            made.append(make())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="trainvitals-make", daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return made[0]
