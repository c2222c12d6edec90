"""Recurrence: a loss that is not finite again and again, counted as one trouble."""

from __future__ import annotations

import msgspec

from trainvitals_server.detect.rows import Flags
from trainvitals_server.finding import Evidence, Finding, Kind

CALM_ROWS = 8  # finite rows that end it the first time; twice as many each time that it came back,
MAX_CALM_ROWS = 512  # up to here
FIRST_TOLD = 8  # non-finite rows that are told together; then each one, and of many each
FRESH_SHARE = 16  # th part more: a count that is shown is never far behind


class Recurrence(msgspec.Struct):
    """Counts the non-finite rows of a session since the first one."""

    first_step: int | None = None
    first_row: int = 0
    last_row: int = 0
    bad_rows: int = 0
    times: int = 0
    kind: Kind = "sudden_nan"
    onset_step: int = 0
    next_told: int = FIRST_TOLD

    @property
    def calm_rows(self) -> int:
        """How many finite rows say that it is over."""
        return int(min(CALM_ROWS * 2.0 ** max(self.times - 1, 0), MAX_CALM_ROWS))

    def add(self, step: int, row: int, *, is_new: bool) -> None:
        """Count a non-finite row, the `row`th of the session; `is_new` if there was calm before it."""
        if self.first_step is None:
            self.first_step, self.first_row = step, row
        self.last_row = row
        self.bad_rows += 1
        self.times += is_new

    def name(self, kind: Kind, onset_step: int) -> None:
        """Take what the first one was called."""
        if self.times == 1:
            self.kind, self.onset_step = kind, onset_step

    def facts(self) -> Flags:
        """Return the counts."""
        if self.bad_rows < 2:
            return {}
        steps = self.last_row - self.first_row + 1
        return {"bad_steps": self.bad_rows, "of_steps": steps, "first_bad_step": self.first_step}

    @property
    def is_news(self) -> bool:
        """Whether there are more by now than were told, by so many that it is worth a word."""
        return self.bad_rows >= self.next_told

    def is_told(self) -> None:
        """Take note that the count was told."""
        self.next_told = self.bad_rows + 1 + self.bad_rows // FRESH_SHARE

    def told_again(self, step: int) -> list[Finding]:
        """Return news of the count after finite rows, where it has grown."""
        if not self.is_news:
            return []
        self.is_told()
        facts = self.facts()
        text = f"the loss was not finite in {facts['bad_steps']} of {facts['of_steps']} steps"
        return [
            Finding(
                kind=self.kind, severity="critical", phase="update", onset_step=self.onset_step,
                detected_step=step, evidence=(Evidence(text=text, series="loss", step=step),), facts=facts,
            )
        ]  # fmt: skip


def counted(number: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
