"""Non-finite gradients and weights, and what the loss scaler makes of them.

Under a loss scaler a skipped update is how the scaler finds its scale: a burst at the start and one skip
after each doubling are normal. Skips that do not end are not. Without a scaler the first non-finite gradient
goes into the weights. Needs `grad_nonfinite` or `grad_norm` (or `skipped`); reads `loss_scale`,
`weight_nonfinite` and the layers' counts where they are there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from trainvitals.wire import BoolArray
from trainvitals_server.batch import Batch
from trainvitals_server.detect.forecast import steps_to_scale
from trainvitals_server.detect.rows import Flags, flags_at
from trainvitals_server.finding import Evidence, Finding, Kind

SETTLED_ROWS = 20  # clean rows after which the scaler has found its scale
START_STREAK = 30  # skips in a row without a scale that goes on falling
SKIPS_A_HALVING = 4  # at most, in a scaler that looks for its place: some wait for a second overflow
SETTLED_STREAK = 8  # once settled: the scale fell 256-fold without helping
WINDOW_ROWS = 24  # skips need not be consecutive:
WINDOW_SKIPS = 12  # half of the updates are lost
BOTTOM_SCALE = 1.0  # at or below it scaling does nothing: the gradient itself is not finite
BOTTOM_STREAK = 3
CALM_ROWS = 50  # clean rows that end a collapse
TOLD_SKIPS = 24  # that are told one by one
SINK_FALL = 2.0**10  # a scale that fell so far without one rise,
SINK_BURSTS = 8  # in so many bursts with updates between them, has sunk:
SINK_SCALE = 2.0**-4  # below 1, where scalers with a floor stop, and a run at 1 may well go on learning

Span = tuple[int, float]  # the first and the last step of a stretch


class Sink(msgspec.Struct):
    """What the scaler did since its scale was last raised."""

    since_step: int | None = None
    highest: float = 0.0
    rows: int = 0
    skips: int = 0
    bursts: int = 0
    told_skips: int = 0
    is_told_empty: bool = False

    def skip(self, step: int, *, is_new_burst: bool) -> None:
        """Count a skipped update."""
        self.since_step = step if self.since_step is None else self.since_step
        self.rows += 1
        self.skips += 1
        self.bursts += is_new_burst


class OverflowFold(msgspec.Struct):
    """Folds the rows whose gradients or weights are not finite; all others only count."""

    loss_scaling: bool = False
    has_scaler: bool | None = None  # as the run says; without one, somebody else skips updates
    clean_rows: int = 0
    settled: bool = False
    streak: int = 0
    streak_step: int = 0
    streak_scale: float = math.nan
    skips: int = 0
    bursts: int = 0
    sink: Sink = msgspec.field(default_factory=Sink)
    first_skip_step: int | None = None
    recent: list[int] = []
    scale: float = math.nan
    collapsed_step: int | None = None
    gradient_step: int | None = None
    weight_step: int | None = None
    pending: int | None = None

    def feed(self, batch: Batch, lost: Sequence[Span] = ()) -> list[Finding]:
        """Return what the rows of `batch` say about gradients, weights and the scaler.

        `lost` are the steps in which the loss is known to diverge.
        """
        findings: list[Finding] = []
        bad, judged = _bad_rows(batch)
        scales = batch.columns.get("loss_scale")
        steps = batch.steps.tolist()
        previous = 0
        for index in [*np.flatnonzero(bad | _scale_moves(batch, self.scale)).tolist(), len(batch)]:
            self._pass_clean(steps, judged, previous, index, findings)
            previous = index + 1
            if index == len(batch):
                break
            flags = flags_at(batch, index)
            if not self.recent and _is_finite_loss(batch, index):
                flags["is_first_row"] = True  # nothing was ever good but the loss
            self._note_scale(flags)
            if bad[index]:
                step = steps[index]
                is_lost = any(first <= step <= last for first, last in lost)
                self._bad(step, flags, findings, is_lost=is_lost)
            elif judged[index]:
                self._clean(steps[index], 1, findings)
        if scales is not None and scales.present.any():
            self.scale = float(scales.values[np.flatnonzero(scales.present)[-1]])
        return findings

    def _pass_clean(
        self, steps: list[int], judged: np.ndarray[tuple[int], np.dtype[np.bool_]], start: int, stop: int,
        findings: list[Finding],
    ) -> None:  # fmt: skip
        places = np.flatnonzero(judged[start:stop])
        if len(places):
            if self.pending is not None or self.collapsed_step is not None:
                for place in places.tolist():
                    self._clean(steps[start + place], 1, findings)
            else:
                self._clean(steps[start + int(places[-1])], len(places), findings)

    def _clean(self, step: int, rows: int, findings: list[Finding]) -> None:
        self.streak = 0
        self.clean_rows += rows
        if self.sink.since_step is not None:
            self.sink.rows += rows
        self.settled = self.settled or self.clean_rows >= SETTLED_ROWS
        self.recent = [*self.recent, *([0] * min(rows, WINDOW_ROWS))][-WINDOW_ROWS:]
        if self.pending is not None:
            findings.append(_norm_overflow(self.pending, step))
            self.pending = None
        if self.collapsed_step is not None and self.clean_rows >= CALM_ROWS:
            text = f"{self.clean_rows} updates in a row were applied again"
            findings.append(
                Finding(kind="loss_scale_collapse", severity="critical", phase="resolve",
                        onset_step=self.collapsed_step, detected_step=step, evidence=(Evidence(text=text),))
            )  # fmt: skip
            self.collapsed_step = None

    def _note_scale(self, flags: Flags) -> None:
        scale, skipped = flags.get("loss_scale"), flags.get("skipped")
        if isinstance(scale, float):
            self.loss_scaling = self.loss_scaling or (scale != 1.0 and scale >= 0)
            if scale > self.scale or not self.sink.highest:
                self.sink = Sink(highest=scale)
            self.scale = scale
        if self.has_scaler is not False and isinstance(skipped, float):
            self.loss_scaling = self.loss_scaling or skipped > 0

    def _bad(self, step: int, flags: Flags, findings: list[Finding], *, is_lost: bool) -> None:
        self.clean_rows = 0
        if flags.get("weight_nonfinite") and self.weight_step is None:
            self.weight_step = step
            findings.append(_bad_weights(step, flags))
        if not _gradient_is_bad(flags):
            return
        if self.loss_scaling and flags.get("skipped") != 0.0:
            self._skip(step, flags, findings)
        elif self.gradient_step is None:
            self._unscaled(step, flags, findings, is_lost=is_lost)

    def _unscaled(self, step: int, flags: Flags, findings: list[Finding], *, is_lost: bool) -> None:
        norm = flags.get("grad_norm")
        sure = is_lost or bool(flags.get("grad_nonfinite")) or (isinstance(norm, float) and math.isnan(norm))
        if not sure and self.pending is None and not self.recent.count(1):
            self.pending = step  # a norm can overflow by itself: the next row tells
            self.recent = [*self.recent, 1][-WINDOW_ROWS:]
            return
        self.gradient_step = self.pending if self.pending is not None else step
        self.pending = None
        kind: Kind = "immediate_blowup" if flags.get("is_first_row") else "nonfinite_gradient"
        findings.append(_bad_gradient(kind, self.gradient_step, step, flags))

    def _skip(self, step: int, flags: Flags, findings: list[Finding]) -> None:
        if not self.streak:
            self.streak_step, self.streak_scale = step, self.scale
            self.bursts += 1
        self.streak += 1
        self.skips += 1
        self.sink.skip(step, is_new_burst=self.streak == 1)
        self.recent = [*self.recent, 1][-WINDOW_ROWS:]
        if self.first_skip_step is None:
            self.first_skip_step = step
        if self.skips <= TOLD_SKIPS:
            findings.append(self._transient(step, flags))
        why = self._why_collapsed(flags)
        if why and self.collapsed_step is None:
            self.collapsed_step = self.streak_step if self.streak > 1 else step
            findings.append(self._collapse(step, why, flags))
        elif self._has_sunk(flags):
            findings.append(self._sunk(step, flags))

    def _has_sunk(self, flags: Flags) -> bool:
        """Whether the scale went to the bottom with good updates between the skips, and that is news."""
        scale, sink = flags.get("loss_scale"), self.sink
        if not isinstance(scale, float) or scale > SINK_SCALE or sink.highest < SINK_FALL * scale:
            return False
        is_empty = scale == 0 and not sink.is_told_empty
        return sink.bursts >= SINK_BURSTS and (is_empty or sink.skips >= 2 * sink.told_skips)

    def _sunk(self, step: int, flags: Flags) -> Finding:
        sink, scale = self.sink, self.scale
        assert sink.since_step is not None
        is_news = self.collapsed_step is not None
        if self.collapsed_step is None:
            self.collapsed_step = sink.since_step
        sink.told_skips, sink.is_told_empty = sink.skips, scale == 0
        halvings = math.log2(sink.highest / scale) if scale else 0.0
        ahead, numbers = self._ahead(step, halvings / max(step - sink.since_step, 1))
        text = (
            f"the loss scaler has skipped {sink.skips} of the last {sink.rows} updates, and the scale fell "
            f"from {sink.highest:g} to {scale:g}"
        )
        return Finding(
            kind="loss_scale_collapse", severity="critical", phase="update" if is_news else "open",
            onset_step=self.collapsed_step, detected_step=step,
            evidence=(Evidence(text=text, series="loss_scale", step=step, value=scale), *ahead),
            facts={**flags, **numbers, "skips": sink.skips, "sink_rows": sink.rows,
                   "scale_before": sink.highest, "loss_scale": scale},
        )  # fmt: skip

    def _why_collapsed(self, flags: Flags) -> str:
        scale = flags.get("loss_scale")
        if isinstance(scale, float) and scale <= BOTTOM_SCALE and self.streak >= BOTTOM_STREAK:
            return f"the scale is down at {scale:g} and the gradient is still not finite"
        if self.streak >= (SETTLED_STREAK if self.settled else START_STREAK) and not self._still_searches():
            return f"{self.streak} updates in a row were skipped"
        if self.settled and sum(self.recent) >= WINDOW_SKIPS:
            return f"{sum(self.recent)} of the last {len(self.recent)} updates were skipped"
        return ""

    def _still_searches(self) -> bool:
        """Whether a run that has just begun is on its way down from a scale far too high for it."""
        if self.settled or not self.streak_scale > self.scale > BOTTOM_SCALE:
            return False
        return math.log2(self.streak_scale / self.scale) >= self.streak / SKIPS_A_HALVING

    def _transient(self, step: int, flags: Flags) -> Finding:
        assert self.first_skip_step is not None
        scale = flags.get("loss_scale")
        at = f" at a scale of {scale:g}" if isinstance(scale, float) else ""
        return Finding(
            kind="transient_overflow", severity="info", phase="update" if self.skips > 1 else "open",
            onset_step=self.first_skip_step, detected_step=step,
            evidence=(Evidence(text=f"the scaler skipped the update of step {step}{at}", series="loss_scale",
                               step=step, value=scale if isinstance(scale, float) else None),),
            facts={"skips": self.skips, "bursts": self.bursts},
        )  # fmt: skip

    def _collapse(self, step: int, why: str, flags: Flags) -> Finding:
        assert self.collapsed_step is not None
        scale = flags.get("loss_scale")
        ahead, numbers = self._forecast(step)
        return Finding(
            kind="loss_scale_collapse", severity="critical", onset_step=self.collapsed_step,
            detected_step=step,
            evidence=(Evidence(text=why, series="loss_scale", step=step,
                               value=scale if isinstance(scale, float) else None), *ahead),
            facts={**flags, **numbers, "streak": self.streak, "skips": self.skips, "settled": self.settled},
        )  # fmt: skip

    def _forecast(self, step: int) -> tuple[tuple[Evidence, ...], Flags]:
        """Return when the scale is 1, and 0, if it goes on halving as it did in these skips."""
        halvings = math.log2(self.streak_scale / self.scale) if self.streak_scale > self.scale > 0 else 0.0
        return self._ahead(step, halvings / max(step - self.streak_step, 1))

    def _ahead(self, step: int, pace: float) -> tuple[tuple[Evidence, ...], Flags]:
        if not pace:
            return (), {}
        one, zero = steps_to_scale(self.scale, pace, 0), steps_to_scale(self.scale, pace)
        ends = f"1 in {one:.0f} steps and 0 in {zero:.0f}" if one > 0 else f"0 in {zero:.0f} steps"
        text = f"if it goes on halving like this, the scale is {ends}"
        return (
            (Evidence(text=text, series="loss_scale", step=step, value=self.scale),),
            {"steps_to_scale_one": one, "steps_to_scale_zero": zero},
        )


def _bad_rows(
    batch: Batch,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return which rows have bad gradients or weights, and which rows say anything about them."""
    bad = np.zeros(len(batch), dtype=bool)
    judged = np.zeros(len(batch), dtype=bool)
    for name in ("grad_nonfinite", "weight_nonfinite", "skipped"):
        series = batch.columns.get(name)
        if series is not None:
            bad |= series.present & (series.values > 0)
            judged |= series.present if name != "weight_nonfinite" else False
    norm = batch.columns.get("grad_norm")
    if norm is not None:
        bad |= norm.present & ~np.isfinite(norm.values)
        judged |= norm.present
    return bad, judged


def _is_finite_loss(batch: Batch, index: int) -> bool:
    series = batch.columns.get("loss")
    return series is not None and bool(series.present[index] and np.isfinite(series.values[index]))


def _scale_moves(batch: Batch, last: float) -> BoolArray:
    series = batch.columns.get("loss_scale")
    if series is None or not len(batch):
        return np.zeros(len(batch), dtype=bool)
    before = np.concatenate(([last], series.values[:-1]))
    moves: BoolArray = series.present & (series.values != before)
    return moves


def _gradient_is_bad(flags: Flags) -> bool:
    norm = flags.get("grad_norm")
    return (
        bool(flags.get("grad_nonfinite"))
        or (isinstance(norm, float) and not math.isfinite(norm))
        or bool(flags.get("skipped"))
    )


def _bad_gradient(kind: Kind, onset: int, step: int, flags: Flags) -> Finding:
    count = flags.get("grad_nonfinite")
    text = (
        _elements_are_bad(count) if isinstance(count, float) and count else "the gradient norm is not finite"
    )
    norm = flags.get("grad_norm")
    return Finding(
        kind=kind, severity="critical", onset_step=onset, detected_step=step,
        nonfinite_step=onset, facts={**flags, "gradient_nonfinite": True},
        evidence=(Evidence(text=text, series="grad_norm", step=step,
                           value=norm if isinstance(norm, float) else None),),
    )  # fmt: skip


def _norm_overflow(onset: int, step: int) -> Finding:
    text = "the gradient norm was infinite in one step and finite in the next: the norm itself overflowed"
    return Finding(
        kind="transient_overflow", severity="info", onset_step=onset, detected_step=step,
        evidence=(Evidence(text=text, series="grad_norm", step=onset, value=math.inf),),
        facts={"norm_overflow": True},
    )  # fmt: skip


def _bad_weights(step: int, flags: Flags) -> Finding:
    count = flags.get("weight_nonfinite")
    return Finding(
        kind="nonfinite_weight", severity="critical", onset_step=step, detected_step=step,
        nonfinite_step=step, facts={**flags, "weights_nonfinite": True},
        evidence=(Evidence(text=_weights_are_bad(count), series="weight_nonfinite", step=step,
                           value=count if isinstance(count, float) else None),),
    )  # fmt: skip


def _elements_are_bad(count: float) -> str:
    return "1 gradient element is not finite" if count == 1 else f"{count:g} gradient elements are not finite"


def _weights_are_bad(count: object) -> str:
    return "1 weight is not finite" if count == 1 else f"{count:g} weights are not finite"
