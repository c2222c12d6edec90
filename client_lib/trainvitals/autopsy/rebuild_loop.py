"""Rebuild of a loop: the user's program is run again up to the first call of its reporter's `step`.

By then it has made its variables, its optimizers and the function that `replay` names. One step of it is made
in doing so; no reporter sends anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from trainvitals.autopsy.bundle import Bundle
from trainvitals.autopsy.loop_source import all_of
from trainvitals.autopsy.reach import moving_variables
from trainvitals.autopsy.scene import Scene
from trainvitals.loop import Reporter
from trainvitals.probe.observed import flat
from trainvitals.probe.tracing import as_written
from trainvitals.probe.types import Value

MAX_STEPS = 20  # a function that the loop calls later may name further variables


class Reached(BaseException):
    """The program has come to where the step can be run."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.scene = scene


class _Named:
    """What one reporter was told of the loop's variables."""

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.optimizers: list[Any] = []
        self.steps = 0

    def add(self, arguments: dict[str, Value]) -> None:
        self.variables += flat(arguments.get("variables"))
        if arguments.get("optimizer") is not None:
            self.optimizers.append(arguments["optimizer"])


@contextlib.contextmanager
def catching_steps(bundle: Bundle) -> Iterator[None]:
    """Let the first step of a loop that fits the bundle end the program."""
    named: dict[int, _Named] = {}

    @as_written
    def observe(self: Reporter, **arguments: Value) -> None:
        named.setdefault(id(self), _Named()).add(arguments)

    def step(self: Reporter, **arguments: Value) -> None:
        known = named.setdefault(id(self), _Named())
        known.add(arguments)
        known.steps += 1
        replay = self._replay
        if replay is None or not bundle.is_of_loop or known.steps > MAX_STEPS:
            return
        variables = list({id(one): one for one in known.variables}.values())
        optimizers = list({id(one): one for one in known.optimizers}.values())
        state = all_of(variables, moving_variables(replay), optimizers)
        with contextlib.suppress(ValueError):
            raise Reached(bundle.loop_scene(state, optimizers, replay))

    def leave(self: Reporter, *error: Value) -> None:
        return None

    with contextlib.ExitStack() as stack:
        for name, method in (("observe", observe), ("step", step), ("__exit__", leave)):
            stack.callback(setattr, Reporter, name, vars(Reporter)[name])
            setattr(Reporter, name, method)
        yield
