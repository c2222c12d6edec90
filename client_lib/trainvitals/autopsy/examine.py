"""The autopsy of one step: replay it, name what went wrong first and the samples that suffice for it."""

from __future__ import annotations

import logging
import time
import warnings

from msgspec.structs import replace

from trainvitals.autopsy.batch import Batch
from trainvitals.autopsy.culprits import Search
from trainvitals.autopsy.line import line_of
from trainvitals.autopsy.naming import Namer
from trainvitals.autopsy.replay import Attempt, Mode, Replayer
from trainvitals.autopsy.report import Report
from trainvitals.autopsy.scene import Scene
from trainvitals.autopsy.seen import HIDDEN, difference, goes_another_way, is_hidden
from trainvitals.autopsy.state import kept

_log = logging.getLogger("trainvitals")
__all__ = ["Scene", "examine"]


def examine(scene: Scene) -> Report:
    """Replay the step of `scene` and report what went non-finite first.

    Every variable and random state is afterwards what it was. A failure of the replay is a report as well:
    only what the user raises on purpose, as Ctrl-C, passes.
    """
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's step: they were shown when it was trained
            report = _examined(scene)
    except (Exception, SystemExit) as error:
        report = _failed(scene, error)
    return replace(report, took_s=round(time.perf_counter() - began, 3))


def _failed(scene: Scene, error: BaseException) -> Report:
    _log.debug("the replay of step %d failed", scene.step, exc_info=error)
    note = f"the replay failed: {type(error).__name__}"
    return Report(
        step=scene.step, found="nothing", is_reproduced=False, weights_from=scene.weights_from, notes=(note,)
    )


def _examined(scene: Scene) -> Report:
    with kept(scene.variables) as keeper:
        replayer = Replayer(scene, keeper)
        batch, attempt = _telling_attempt(scene, replayer)
        namer = Namer(scene, replayer, batch)
        report, candidates = namer.report(attempt)
        if report.found == "weight" and scene.weights_from in ("after_step", "none"):
            report = namer.without_weights()
        if attempt.mode.is_unscaled:
            report = replace(report, notes=(*report.notes, _unscaled_note(attempt)))
        report = _as_seen(scene, attempt, report)
        return Search(replayer, batch, attempt).samples(report, candidates)


def _as_seen(scene: Scene, attempt: Attempt, report: Report) -> Report:
    """Return the report, or one that names no cause, where the replay went another way than the training."""
    if report.found not in ("operation", "weight"):
        return report
    differs = goes_another_way(
        scene.seen, attempt.stage, is_plain=scene.is_plain, has_gradients=attempt.has_gradients
    )
    if not differs:
        is_fused = is_hidden(scene.seen, attempt.stage)
        return replace(report, notes=(*report.notes, HIDDEN)) if is_fused else report
    notes = difference(scene.seen, attempt.stage, scene.weights_from)
    return Report(
        step=scene.step,
        found="nothing",
        is_reproduced=False,
        met=attempt.stage,
        batch_size=report.batch_size,
        weights_from=scene.weights_from,
        notes=(*notes, f"what the replay met: {line_of(report)}"),
    )


def _telling_attempt(scene: Scene, replayer: Replayer) -> tuple[Batch, Attempt]:
    """Return the batch and the replay to report on."""
    batch = Batch(scene.data)
    attempt = replayer.attempt(batch.data, Mode(is_recorded=True))
    if attempt.error is not None and not attempt.stage:  # a loop's function may want numpy's own arrays
        given = Batch(scene.data, is_converted=False)
        again = replayer.attempt(given.data, attempt.mode)
        if again.error is None:
            batch, attempt = given, again
    if not attempt.stage and attempt.has_only_loss and scene.weights and not scene.is_validation:
        return batch, replayer.attempt(batch.data, Mode(is_recorded=True, is_differentiated=True))
    if attempt.stage == "gradient" and attempt.scale != 1.0:
        return batch, _unscaled(scene, replayer, batch, attempt)
    return batch, attempt


def _unscaled(scene: Scene, replayer: Replayer, batch: Batch, scaled: Attempt) -> Attempt:
    """Return a replay without the loss scale, or the one with it where the overflow itself is asked for."""
    attempt = replayer.attempt(batch.data, Mode(is_recorded=True, is_unscaled=True))
    if not attempt.stage and scene.counts_overflow:
        return scaled
    attempt.scale = scaled.scale
    return attempt


def _unscaled_note(attempt: Attempt) -> str:
    if attempt.stage:
        return f"it does not come from the loss scale: replayed with 1 in place of {attempt.scale:g}"
    return f"the gradients overflow only for the loss scale of {attempt.scale:g}: a skip that is normal"
