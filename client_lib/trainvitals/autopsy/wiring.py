"""Wiring: when a failing step is looked at, by whom, and who is told. All of it in the training thread."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from trainvitals.autopsy import bundle
from trainvitals.autopsy.examine import Scene, examine
from trainvitals.autopsy.line import line_of
from trainvitals.autopsy.report import Report
from trainvitals.autopsy.seen import seen_in
from trainvitals.autopsy.share import event_data
from trainvitals.autopsy.watch import Watch, failures, last_well, skips
from trainvitals.probe.decode import Decoded
from trainvitals.response import Response
from trainvitals.session import Session

MAX_AUTOPSIES = 3  # of one run: what comes after the third is hardly news
LONGEST_S = 20.0  # the training waits for a replay
SLOWER_EAGERLY = (
    10.0  # how many times the step's own time a replay takes, roughly, with the search for samples
)
PUT_OFF = "replaying it would hold up your training"
PROMISE_S = 120.0  # no rows come meanwhile

_log = logging.getLogger("trainvitals")


class Source(Protocol):
    """Where failing steps come from: a model in `fit`, or a loop."""

    def settle(self) -> None:
        """Adapt to what is known after some steps."""

    def arm(self, *, for_skips: bool) -> None:
        """Keep the next failing step; for_skips: or one that a loss scaler skips."""

    def take(self, step: int) -> Scene | None:
        """Return the step that was kept, and keep no other one; the rows say that it was `step`."""

    @property
    def reason(self) -> str:
        """Why `take` had nothing, where there is a reason to tell."""


class Autopsy:
    """Looks at the rows that were read, and has the first failing step of each incident examined."""

    def __init__(self, session: Session, response: Response) -> None:
        self._session = session
        self._response = response
        self._watch = Watch()
        self._count = 0
        self._is_armed = True
        self._is_for_skips = False
        self._last_well: int | None = None  # of the rows of earlier reads

    def begin(self) -> None:
        """Expect a new fit, whose first failing step is kept."""
        self._watch, self._last_well = Watch(), None
        self._is_armed, self._is_for_skips = True, False

    def look(self, pieces: Sequence[Decoded], source: Source, step_s: float) -> bool:
        """Act on new rows; return whether a step was examined. A failure of ours costs one line in the log.

        Args:
            pieces: The rows, in order.
            source: Where the failing step is kept.
            step_s: How long a step takes.
        """
        try:
            return self._look(pieces, source, step_s)
        except Exception:  # the user's code runs here again, and may do anything
            self._is_armed, self._count = False, MAX_AUTOPSIES
            _log.warning("no autopsy: trainvitals failed at it; your training goes on", exc_info=True)
            return False

    def _look(self, pieces: Sequence[Decoded], source: Source, step_s: float) -> bool:
        source.settle()
        failed = [step for piece in pieces for step in self._failed_steps(piece)]
        is_examined = self._looked(pieces, source, failed, step_s)
        known = last_well(pieces, int(pieces[-1].steps[-1]) + 1)
        self._last_well = self._last_well if known is None else known
        return is_examined

    def _looked(
        self, pieces: Sequence[Decoded], source: Source, failed: Sequence[int], step_s: float
    ) -> bool:
        if not failed:
            self._rearm(source)
            return False
        if not self._is_armed or self._count >= MAX_AUTOPSIES:
            return False
        self._is_armed = False
        is_examined = self._examine(source, pieces, failed[0], step_s)
        if self._watch.is_well:
            self._rearm(source)
        return is_examined

    def _rearm(self, source: Source) -> None:
        """Wait for another incident once the training is well; take skips too when there are too many."""
        if self._count >= MAX_AUTOPSIES:
            return
        is_due = self._watch.is_well and not self._is_armed
        if is_due or (self._is_armed and self._watch.has_many_skips != self._is_for_skips):
            self._is_for_skips = self._watch.has_many_skips
            self._is_armed = True
            source.arm(for_skips=self._is_for_skips)

    def _failed_steps(self, piece: Decoded) -> list[int]:
        self._watch.feed(piece)
        found = failures(piece) | skips(piece) if self._is_for_skips else failures(piece)
        return [int(step) for step in piece.steps[found]]

    def _examine(self, source: Source, pieces: Sequence[Decoded], step: int, step_s: float) -> bool:
        scene = source.take(step)
        if scene is None:
            if source.reason:
                self._count += 1
                self._say(f"a step went non-finite and cannot be replayed: {source.reason}")
            return False
        self._count += 1
        if step_s * SLOWER_EAGERLY > LONGEST_S:
            self._put_off(scene)
            return False
        known = last_well(pieces, scene.step)
        before = self._last_well if known is None else known
        self._told(dataclasses.replace(scene, seen=seen_in(pieces, scene.step), last_well=before))
        return True

    def _told(self, scene: Scene) -> None:
        self._session.sender.heartbeat(PROMISE_S, "training")
        report = examine(scene)
        report = replace(report, bundle=self._bundle(scene, report))
        self._session.sender.event("autopsy", report.step, event_data(report, scene.data, self._response))
        self._session.sender.say(line_of(report) + _again(report.bundle))

    def _put_off(self, scene: Scene) -> None:
        report = Report(
            step=scene.step,
            found="nothing",
            is_reproduced=False,
            weights_from=scene.weights_from,
            notes=(PUT_OFF,),
        )
        folder = self._bundle(scene, report)
        again = "" if self._response.redact else _again(folder)  # the line goes to the server, too
        self._say(f"step {scene.step} went non-finite; {PUT_OFF}{again}")

    def _bundle(self, scene: Scene, report: Report) -> str:
        if report.found == "weight":  # what went wrong did so in an earlier step: this one tells nothing
            return ""
        try:
            folder = bundle.write(scene, report, self._session.spool_dir, self._session.identity.run_id)
        except (OSError, TypeError, ValueError) as error:
            _log.warning("the failing step is not kept on disk: %s", error)
            return ""
        return str(folder)

    def _say(self, text: str) -> None:
        self._session.sender.say(text)
        self._session.sender.event("message", max(self._session.last_step or 0, 0), {"text": text})


def _again(folder: str) -> str:
    return f"; again with: trainvitals replay {folder}" if folder else ""
