"""Which series each kind of incident needs: what a log can be scanned for, what not, and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from trainvitals_server.finding import Kind


@dataclass(frozen=True, slots=True)
class Need:
    """Kinds that are looked for together; one series of every group in `groups` must be there."""

    kinds: tuple[Kind, ...]
    groups: tuple[tuple[str, ...], ...]


NEEDS = (
    Need(("immediate_blowup", "gradual_divergence", "fast_divergence"), (("loss",),)),
    Need(("sudden_nan", "loss_spike", "bad_batch"), (("loss",),)),
    Need(("nonfinite_gradient",), (("grad_norm", "grad_nonfinite"),)),
    Need(("exploding_gradient",), (("grad_norm",),)),
    Need(("optimizer_epsilon",), (("grad_norm",), ("loss",))),
    Need(("transient_overflow", "loss_scale_collapse"),
         (("loss_scale", "skipped"), ("grad_norm", "grad_nonfinite", "skipped"))),
    Need(("nonfinite_weight",), (("weight_nonfinite",),)),
    Need(("validation_nonfinite",), (("val_loss",),)),
    Need(("plateau", "oscillation", "silent_constant", "runaway_negative_loss"), (("loss",),)),
    Need(("loss_scale_stuck_low",),
         (("loss",), ("loss_scale",), ("skipped", "grad_nonfinite", "grad_norm"))),
    Need(("overfitting",), (("loss",), ("val_loss",))),
    Need(("metric_nonfinite",), (("loss",), ("<metric>_running",))),
    Need(("slow_steps",), (("step_time_s",),)),
    Need(("dead_units",), (("layer_grad_norm",),)),
    Need(("vanishing_gradient", "saturation"), (("loss",), ("layer_grad_norm",))),
    Need(("scaler_misuse",), (("loss",), ("grad_norm",), ("loss_scale",))),
    Need(("activation_overflow",), (("loss",), ("grad_norm",), ("float16 dtype policy",))),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Skipped:
    """A kind that was not looked for, and why."""

    kind: str
    reason: str


def coverage(series: Collection[str]) -> tuple[list[str], list[Skipped]]:
    """Return the kinds that these series allow to look for, and the others with the reason."""
    names = {_family(name) for name in series}
    ran: list[str] = []
    skipped: list[Skipped] = []
    for need in NEEDS:
        missing = [group for group in need.groups if not names.intersection(group)]
        if missing:
            reason = "no series " + " and no ".join(" or ".join(group) for group in missing)
            skipped += [Skipped(kind, reason) for kind in need.kinds]
        else:
            ran += need.kinds
    return ran, skipped


def _family(name: str) -> str:
    """Return the name that stands for all series of its family."""
    if name.startswith("val_"):
        return "val_loss"
    return "<metric>_running" if name.endswith("_running") else name
