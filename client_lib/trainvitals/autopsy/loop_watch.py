"""LoopWatch: what becomes of the failing steps of a loop: they are examined, and the loop is asked to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainvitals.autopsy.loop_source import LoopSource
from trainvitals.autopsy.watch import failures
from trainvitals.autopsy.wiring import Autopsy
from trainvitals.probe.capture import Capture
from trainvitals.probe.decode import Decoded
from trainvitals.probe.observed import Given
from trainvitals.probe.types import Tensor, Value
from trainvitals.response import Response
from trainvitals.session import Session


class LoopWatch:
    """Looks at the rows of a loop. Only the training thread may call it."""

    def __init__(self, session: Session, response: Response, replay: Callable[[Any], Any] | None) -> None:
        self.is_halted = False
        self.is_examining = False  # the user's step is being replayed, and may call the reporter
        self._session = session
        self._policy = response.policy
        self._autopsy = Autopsy(session, response)
        self._source = LoopSource(replay) if replay is not None and response.autopsy else None

    @property
    def replays(self) -> bool:
        """Whether failing steps are replayed, and so are to be noted."""
        return self._source is not None

    def watch(self, given: Given) -> tuple[Capture | None, list[tuple[Any, Tensor]]]:
        """Return what keeps failing steps of the function that is traced, and what is held of its start."""
        if self._source is None or given.batch is None:
            return None, []
        return self._source.watch(given)

    def note(self, step: int, batch: Value, variables: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Take note of a step whose update is made."""
        if self._source is not None:
            self._source.note(step, batch, variables, optimizers)

    def forget(self) -> None:
        """Let go what was noted: which step each was is not known."""
        if self._source is not None:
            self._source.forget()

    def look(self, pieces: Sequence[Decoded], step_s: float) -> bool:
        """Have a step that failed examined, and end the loop if that is asked for.

        Returns:
            Whether it took time that is none of the next step's.
        """
        is_examined = self._examine(pieces, step_s)
        failed = [step for piece in pieces for step in piece.steps[failures(piece)]]
        if not failed:
            if self._source is not None:
                self._source.confirm(int(pieces[-1].steps[-1]))
        elif self._policy == "stop" and not self.is_halted:
            self.is_halted = True
            self._session.sender.say(f"step {failed[0]} went non-finite: stop_requested is True now")
        return is_examined

    def _examine(self, pieces: Sequence[Decoded], step_s: float) -> bool:
        if self._source is None:
            return False
        self.is_examining = True
        try:
            return self._autopsy.look(pieces, self._source, step_s)
        finally:
            self.is_examining = False
