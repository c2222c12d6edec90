"""Effort: what a `fit` spends on measuring beyond its rows: how much of it, when, and why more for a while.

Over budget, what is measured now and then (weights, sizes of gradients) thins first, then the norm pass of a
heavy model. Near trouble all of it comes in every step for a while. Only the training thread may call it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from trainvitals.autopsy.watch import failures, skips
from trainvitals.budget import DEFAULT_SHARE, Overhead
from trainvitals.pace import interval_for, rest_of, usual_step_s
from trainvitals.probe.compiled import size_of
from trainvitals.probe.decode import Decoded
from trainvitals.probe.dials import Dials
from trainvitals.probe.keras3 import Probe
from trainvitals.probe.kinds import steps_per_execution_of
from trainvitals.probe.snapshots import COPIED_BYTES_PER_S
from trainvitals.probe.thinning import Thinning, pass_seconds
from trainvitals.probe.types import Model
from trainvitals.probe.weights import Weights
from trainvitals.vigil import Vigil

REMEMBERED = 64  # executions, of which the middle one is the usual one
FEWEST = 3
DETAIL_PASSES = 8  # over memory, as long as the norm pass each: what the details of gradients take, roughly


class Effort:
    """The measurements of one reporter that cost more than a row; kept over several calls of `fit`."""

    def __init__(self, share: float = DEFAULT_SHARE, clock: Callable[[], float] = time.perf_counter) -> None:
        self._share = share
        self._clock = clock
        self.weights = Weights(share)
        self._vigil = Vigil()
        self._overhead = Overhead()
        self._asked: Dials | None = None
        self._pass_s: float | None = None  # what the norm pass takes, if there is one that may be left out
        self._pass_share = 0.0  # of the time
        self._began = self._reads_s = 0.0
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._is_first = True
        self._size = 1
        self._of: tuple[int, int] | None = None  # the model, and its steps an execution

    def begin(self, model: Model) -> None:
        """Forget an earlier `fit`, but for how long the steps of the same model take."""
        self.weights.begin(model)
        self._began, self._reads_s = self._clock(), 0.0
        self._overhead = Overhead(self._began)
        self._is_first, self._size = True, steps_per_execution_of(model)
        if self._of != (id(model), self._size):
            self._of = id(model), self._size
            self._pass_s, self._pass_share = None, 0.0
            self._seconds.clear()

    def is_near_trouble(self, step: int) -> bool:
        """Return whether everything is measured in `step`, however many rows were not read yet."""
        return self._share > 0 and self._vigil.counts_everything(step)

    def before(self, step: int, probe: Probe) -> None:
        """Measure the weights if it is time; the coming execution begins with `step`."""
        is_wanted = self.is_near_trouble(step)
        is_measured = self.weights.note_before(step, probe.variables, probe.groups, is_wanted=is_wanted)
        if is_measured and probe.dials is not None:
            self._asked = probe.dials
            self._asked.ask()

    def after(self, seconds: float, probe: Probe) -> None:
        """Measure what the execution, which took `seconds`, has changed."""
        asked_s = 0.0 if self._asked is None else self._details_s(seconds, probe)
        self._rest()
        self._overhead.note(self.weights.note_after(asked_s))
        if not self._is_first:  # which compiles
            self._seconds.append(seconds)
        self._is_first = False

    def drop(self) -> None:
        """Let go of what is held: the execution did not end."""
        self.weights.drop()
        self._rest()

    def note(self, seconds: float) -> None:
        """Take note of time that reading has taken; what is measured now and then has only the rest."""
        self._overhead.note(seconds)
        self._reads_s += seconds
        elapsed = self._clock() - self._began
        if elapsed >= Overhead.EVERY_S:
            self.weights.budget.share = rest_of(self._share, self._reads_s / elapsed, self._pass_share)

    def share(self, now: float) -> float | None:
        """Return the share of the time that all of it took since it was last told; None while that is new."""
        return self._overhead.share(now)

    def look(self, pieces: Sequence[Decoded], probe: Probe, step: int, *, has_incident: bool) -> None:
        """Judge by new rows, and by what the server said, how much is measured from `step` on."""
        if any(failures(piece).any() for piece in pieces):
            self._vigil.note("failure", step)
        if any(skips(piece).any() for piece in pieces):
            self._vigil.note("skip", step)
        if has_incident:
            self._vigil.note("incident", step)
        thinning = None if probe.dials is None else probe.dials.thinning
        if thinning is not None and thinning.variables and pieces:
            self._set_pace(thinning, sum(map(_measured, pieces)), step)

    def _set_pace(self, thinning: Thinning, measured: int, step: int) -> None:
        if self._pass_s is None:
            self._pass_s = pass_seconds(thinning.variables, self._clock)
        self._overhead.note(measured * self._pass_s)
        if len(self._seconds) < FEWEST:
            return
        whole_s = usual_step_s(self._seconds, self._size)
        step_s = max(whole_s - self._pass_s / thinning.interval, 0.0)
        interval = interval_for(self._pass_s, step_s, self._share)
        self._pass_share = self._pass_s / (interval * step_s) if step_s > 0 else 0.0
        thinning.set(1 if self._vigil.counts_gradients(step) else interval)

    def _details_s(self, seconds: float, probe: Probe) -> float:
        """Return what the details took: by the memory they pass over, or by how much longer it all took.

        With a small model they are a hundred operations on hardly any memory.
        """
        reckoned = DETAIL_PASSES * self._size * self._memory_s(probe)
        if len(self._seconds) < FEWEST:
            return reckoned
        return max(reckoned, seconds - usual_step_s(self._seconds, 1))

    def _memory_s(self, probe: Probe) -> float:
        """Return how long one pass over the gradients takes; by their size where it was never timed."""
        return self._pass_s or size_of(probe.variables) / COPIED_BYTES_PER_S

    def _rest(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.rest()


def _measured(piece: Decoded) -> int:
    """Return in how many rows the gradients were measured."""
    values, present = piece.columns.get("grad_norm", ((), None))
    return len(values) if present is None else int(present.sum())
