"""Incident: what the user is told about one cause on one run, in the very fields of the REST interface.

Store, alert, live hub and API all carry this record.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from trainvitals_server.finding import Evidence, Finding, Kind, Severity

IncidentState = Literal["open", "withdrawn", "resolved"]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One explanation.

    `confidence` is 0 .. 1; `supports` and `against` (for, against) are sentences with numbers.
    """

    cause: str
    confidence: float
    supports: list[str] = msgspec.field(name="for", default_factory=list)
    against: list[str] = []
    fix: str = ""
    snippet: str = ""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Are the weights still usable? None where the run's signals cannot tell."""

    usable: bool | None = None
    bad_since: int | None = None
    last_checkpoint_step: int | None = None


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one cause on one run.

    `id` is deterministic: folding the same rows again gives the same one. `kind` and `severity` are those it
    was raised as; an escalation shows in `findings` and raises `severity`. `lead_steps` is `nonfinite_step -
    detected_step`: the warning it gave.
    """

    id: str
    run_id: str
    kind: Kind
    severity: Severity
    state: IncidentState = "open"
    onset_step: int
    detected_step: int
    nonfinite_step: int | None = None
    lead_steps: int | None = None
    layer: str | None = None
    rank: int = 0
    session_id: str = ""
    late: bool = False
    verdict: str = ""
    why: list[str] = []
    next: list[str] = []
    weights: Weights = Weights()
    causes: list[Cause] = []
    evidence: list[Evidence] = []
    first_bad_layers: list[str] = []
    first_bad_operation: dict[str, Any] | None = None
    findings: list[Finding] = []
    revision: int = 1
