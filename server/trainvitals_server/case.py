"""Case: one incident with what is known about its run, and what follows from both. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainvitals.wire import Environment, Layer
from trainvitals_server.detect.origin import Origin
from trainvitals_server.detect.rates import RateSummary
from trainvitals_server.detect.rows import Flags
from trainvitals_server.first_bad import FirstBad
from trainvitals_server.incident import Incident
from trainvitals_server.suspects import Suspect

NONFINITE_KINDS = frozenset({"sudden_nan", "nonfinite_gradient", "nonfinite_weight", "bad_batch"})
SURE = 0.9  # above it a cause is stated, below it is "likely"
SETTLED_ROWS = 20
FAR_OUT = 1000.0  # times the noise of the loss
FIRST_ROWS = 2
GROWING_KINDS = frozenset({"gradual_divergence", "fast_divergence", "exploding_gradient"})


@dataclass(frozen=True, slots=True)
class Context:
    """What is known about the run beside its rows."""

    environment: Environment = field(default_factory=Environment)
    layers: tuple[Layer, ...] = ()
    checkpoints: tuple[int, ...] = ()
    rates: RateSummary = field(default_factory=RateSummary)
    origin: Origin = field(default_factory=Origin)
    is_by_step: bool = True  # a row is a step, and not what a log says once an epoch


@dataclass(frozen=True, slots=True)
class Case:
    """One incident with its context, and what follows from both."""

    incident: Incident
    context: Context
    facts: Flags
    suspects: list[Suspect]
    first_bad: FirstBad | None = None  # what a replay of the failing step found

    @property
    def is_growing(self) -> bool:
        """Whether the trouble grew out of finite values."""
        kind = self.incident.kind
        return kind in GROWING_KINDS or (kind == "immediate_blowup" and "height" in self.facts)

    @property
    def rose_at_once(self) -> bool:
        """Whether the loss left its range at once, by far: a batch is judged before it is learned from."""
        height, before = self.facts.get("height"), self.facts.get("rows_before")
        is_old = isinstance(before, int | float) and before >= SETTLED_ROWS
        is_sudden = int(self.facts.get("excursion_rows") or 0) <= FIRST_ROWS
        return is_old and is_sudden and isinstance(height, float) and height >= FAR_OUT

    @property
    def is_nonfinite(self) -> bool:
        """Whether it came out of the blue, non-finite."""
        kind = self.incident.kind
        return kind in NONFINITE_KINDS or (kind == "immediate_blowup" and not self.is_growing)

    @property
    def is_half(self) -> bool:
        """Whether the run computes in float16."""
        policy = self.context.environment.dtype_policy
        return "float16" in policy and "bfloat16" not in policy

    @property
    def is_loss_bad(self) -> bool:
        """Whether the loss itself was not finite in the row that gave it away."""
        return bool(self.facts.get("loss_nonfinite"))

    def latest(self, fact: str) -> Flags:
        """Return the facts of the newest finding that has this one; {} where none has."""
        told = (finding.facts for finding in reversed(self.incident.findings) if fact in finding.facts)
        return next(told, {})

    @property
    def scaler(self) -> Flags:
        """What was last said of a scaler that goes down; {} where none does."""
        told = [item for item in self.incident.findings if item.kind == "loss_scale_collapse"]
        return told[-1].facts if told and told[-1].phase != "resolve" else {}

    def of_kind(self, *kinds: str) -> list[Suspect]:
        """Return the suspects of these kinds, unguarded ones first."""
        return [suspect for suspect in self.suspects if suspect.kind in kinds]


@dataclass(frozen=True, slots=True)
class Guess:
    """A cause before it gets its texts."""

    cause: str
    confidence: float
    supports: list[str] = field(default_factory=list)
    against: list[str] = field(default_factory=list)
    layer: str | None = None
