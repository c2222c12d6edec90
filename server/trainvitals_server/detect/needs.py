"""Which series each kind of incident needs: what a log can be scanned for, what not, and why.

Every kind is in one of the two lists, whatever the source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trainvitals_server.detect import (
    fading,
    gradient,
    layer_rows,
    low_scale,
    misuse,
    oscillation,
    overfitting,
    plateau,
    runaway,
    silent_overflow,
    speed,
)
from trainvitals_server.detect.blocks import LOSS_BLOCK
from trainvitals_server.detect.constant import STILL_ROWS
from trainvitals_server.finding import Kind

HALF = "float16 dtype policy"  # beside the series: what a reporter says of its run
LIVE = "connection of a reporter"


@dataclass(frozen=True, slots=True)
class Need:
    """Kinds that are looked for together.

    One series of every group in `groups` must be there, the first group with at least `rows` values: fewer
    can show nothing. `beside` is what no series says.
    """

    kinds: tuple[Kind, ...]
    groups: tuple[tuple[str, ...], ...]
    rows: int = 1
    beside: str = ""


LOSS = ("loss",)
NEEDS = (
    Need(("immediate_blowup", "gradual_divergence", "fast_divergence"), (LOSS,)),
    Need(("sudden_nan", "loss_spike", "bad_batch"), (LOSS,)),
    Need(("nonfinite_gradient",), (("grad_norm", "grad_nonfinite"),)),
    Need(("exploding_gradient",), (("grad_norm", "layer_grad_norm"),)),
    Need(("optimizer_epsilon",), (("grad_norm",),), gradient.QUIET_ROWS + 1),
    Need(("transient_overflow",), (("grad_norm", "grad_nonfinite", "skipped"),)),
    Need(("loss_scale_collapse",),
         (("loss_scale", "skipped"), ("grad_norm", "grad_nonfinite", "skipped"))),
    Need(("nonfinite_weight",), (("weight_nonfinite",),)),
    Need(("validation_nonfinite",), (("val_loss",),)),
    Need(("silent_constant",), (LOSS,), STILL_ROWS),
    Need(("runaway_negative_loss",), (LOSS,), runaway.BLOCK * runaway.IMPOSSIBLE_SPAN),
    Need(("oscillation",), (LOSS,), LOSS_BLOCK * oscillation.MIN_BLOCKS),
    Need(("plateau",), (LOSS,), LOSS_BLOCK * plateau.MIN_BLOCKS),
    Need(("loss_scale_stuck_low",),
         (LOSS, ("loss_scale",), ("skipped", "grad_nonfinite", "grad_norm")),
         LOSS_BLOCK * low_scale.MIN_BLOCKS),
    Need(("overfitting",), (("val_loss",), LOSS), overfitting.MIN_MOVES + 1),
    Need(("metric_nonfinite",), (("<metric>_running",), LOSS)),
    Need(("slow_steps",), (("step_time_s",),), speed.BLOCK * (1 + speed.MIN_KNOWN + speed.SLOW_BLOCKS)),
    Need(("dead_units",), (("layer_grad_norm",),), layer_rows.BLOCK),
    Need(("vanishing_gradient", "saturation"), (("layer_grad_norm",), LOSS),
         layer_rows.BLOCK * fading.LATELY),
    Need(("scaler_misuse",), (LOSS, ("grad_norm",), ("loss_scale",)), misuse.ROWS),
    Need(("activation_overflow",), (LOSS, ("grad_norm",)),
         silent_overflow.BLOCK * (silent_overflow.MIN_CALM + 2), HALF),
    Need(("run_stalled", "run_crashed"), (), beside=LIVE),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Skipped:
    """A kind that was not looked for, and why."""

    kind: Kind
    reason: str


def coverage(
    series: Collection[str] | Mapping[str, int], beside: Collection[str] = ()
) -> tuple[list[Kind], list[Skipped]]:
    """Return the kinds that these series allow to look for, and the others with the reason.

    `series` may say how many values each one holds; `beside` is what else is known: HALF, LIVE.
    """
    counts: dict[str, int | None] = {}
    for name in series:
        count = series[name] if isinstance(series, Mapping) else None
        known = counts.get(_family(name))
        counts[_family(name)] = count if known is None or count is None else max(known, count)
    ran: list[Kind] = []
    skipped: list[Skipped] = []
    for need in NEEDS:
        reason = _why_not(need, counts, beside)
        if reason:
            skipped += [Skipped(kind, reason) for kind in need.kinds]
        else:
            ran += need.kinds
    return ran, skipped


def _why_not(need: Need, counts: Mapping[str, int | None], beside: Collection[str]) -> str:
    """Return why these kinds cannot be looked for; "" where they can."""
    missing = [group for group in need.groups if not counts.keys() & set(group)]
    if missing:
        return "no series " + " and no ".join(" or ".join(group) for group in missing)
    if need.beside and need.beside not in beside:
        return f"no {need.beside}"
    known = [(counts[name], name) for group in need.groups[:1] for name in group if name in counts]
    most, name = max(known, key=lambda item: item[0] or 0, default=(None, ""))
    if most is None or most >= need.rows or any(count is None for count, _ in known):
        return ""
    return f"{most} values of {name}, it takes {need.rows}"


def _family(name: str) -> str:
    """Return the name that stands for all series of its family."""
    if name.startswith("val_"):
        return "val_loss"
    return "<metric>_running" if name.endswith("_running") else name
