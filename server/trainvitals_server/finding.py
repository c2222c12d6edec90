"""Finding: what one detector says, with its evidence.

Values only; nothing here decides what a user is told.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Severity = Literal["critical", "warning", "info"]
Kind = Literal[
    "immediate_blowup", "gradual_divergence", "fast_divergence", "sudden_nan", "nonfinite_gradient",
    "nonfinite_weight", "transient_overflow", "loss_scale_collapse", "loss_scale_stuck_low", "loss_spike",
    "exploding_gradient", "vanishing_gradient", "dead_units", "saturation", "optimizer_epsilon", "bad_batch",
    "validation_nonfinite", "metric_nonfinite", "plateau", "oscillation", "silent_constant", "overfitting",
    "run_stalled", "run_crashed", "slow_steps", "scaler_misuse", "runaway_negative_loss",
    "activation_overflow",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
Phase = Literal["open", "update", "withdraw", "resolve"]


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One observation a person can check on the page: this series had this value at this step."""

    text: str
    series: str | None = None
    step: int | None = None
    value: float | None = None  # may be NaN or infinite
    layer: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that one detector saw in one session's rows.

    `onset_step` is where the trouble began, `detected_step` the row that gave it away (nothing later was
    used). `phase` tells a new finding from news about an earlier one of the same `(kind, onset_step, layer)`.
    `facts` are the numbers that the diagnosis needs.
    """

    kind: Kind
    severity: Severity
    onset_step: int
    detected_step: int
    phase: Phase = "open"
    nonfinite_step: int | None = None
    layer: str | None = None
    evidence: tuple[Evidence, ...] = ()
    facts: dict[str, float | int | str | bool | None] = {}

    @property
    def key(self) -> str:
        """What identifies this finding within its session, however often the rows are folded again."""
        return f"{self.kind}:{self.onset_step}:{self.layer or ''}"
