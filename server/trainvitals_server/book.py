"""The book of one session: findings of one cause become one incident with its life. Pure.

The first cause wins: while a critical incident is open, whatever else goes wrong is its consequence and is
attached to it. An incident keeps the kind, onset and detection step it was raised with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from trainvitals_server.finding import Finding
from trainvitals_server.incident import Incident, IncidentState

Told = TypeVar("Told")

MAX_FINDINGS = 64  # of one incident; a run that limps for days must not grow without bound
BRIEF_KINDS = frozenset({"transient_overflow"})  # over as soon as they are told
# What ends by itself ends only the incident that it opened, never one that it is a consequence of.
PASSING_KINDS = frozenset({
    "plateau", "oscillation", "overfitting", "slow_steps", "silent_constant", "metric_nonfinite",
    "loss_scale_stuck_low",
})  # fmt: skip
# Training itself goes on beside these: what else goes wrong in it is not their doing.
BYSTANDERS = frozenset({"validation_nonfinite", "metric_nonfinite"})
SIGHTS_OF_THEIR_OWN = frozenset({"slow_steps"})  # no failure of the numbers makes a step slow
# Whatever follows is this one's doing.
CAUSES_OF_THEIR_OWN = frozenset({"optimizer_epsilon", "scaler_misuse", "activation_overflow"})
# Where one of these comes again after it was over, it is the same trouble.
RECURRING_KINDS = frozenset({"sudden_nan", "immediate_blowup", "nonfinite_gradient"})
GROWING_KINDS = frozenset({"gradual_divergence", "fast_divergence", "exploding_gradient"})
NATURE = ("skipped", "input_nonfinite", "label_nonfinite")  # what two failures of one cause agree in
PRECEDENCE = (
    "immediate_blowup", "sudden_nan", "fast_divergence", "gradual_divergence", "nonfinite_gradient",
    "exploding_gradient", "nonfinite_weight", "loss_scale_collapse",
)  # fmt: skip


class Book(msgspec.Struct):
    """The incidents of one session, in order of detection."""

    run_id: str
    session_id: str
    rank: int = 0
    late: bool = False
    group: str = ""
    incidents: list[Incident] = []

    def add(self, finding: Finding) -> Incident | None:
        """Enter one finding; return the incident that is new or changed by it, if any."""
        if finding.phase == "withdraw":
            return self._close(finding, "withdrawn")
        if finding.phase == "resolve" and (finding.severity != "info" or finding.kind in PASSING_KINDS):
            return self._close(finding, "resolved")
        if finding.kind in BRIEF_KINDS and self._has_open_failure():
            return None  # what a scaler does in a run that is failing is no news of its own
        place = self._place_of(finding)
        return self._open(finding) if place is None else self._attach(place, finding)

    def _has_open_failure(self) -> bool:
        return any(
            item.state == "open" and (item.severity == "critical" or item.kind in GROWING_KINDS)
            for item in self.incidents
        )

    def put(self, incident: Incident) -> None:
        """Take back an incident whose words were filled in."""
        for place, known in enumerate(self.incidents):
            if known.id == incident.id:
                self.incidents[place] = incident

    def _place_of(self, finding: Finding) -> int | None:
        """Return the incident that this finding belongs to; None if it is a cause of its own."""
        for place in reversed(range(len(self.incidents))):
            incident = self.incidents[place]
            if finding.phase == "update" and incident.findings[0].key == finding.key:
                return place
            if incident.state == "open" and _is_consequence(finding, incident):
                return place
        return self._recurs_in(finding)

    def _recurs_in(self, finding: Finding) -> int | None:
        """Return the incident that was over and is back with this finding."""
        for place in reversed(range(len(self.incidents))):
            if self.incidents[place].state == "resolved" and _is_same_again(finding, self.incidents[place]):
                return place
        return None

    def _open(self, finding: Finding) -> Incident:
        brief = finding.phase == "resolve" or finding.kind in BRIEF_KINDS
        incident = Incident(
            id=self._next_id(finding),
            run_id=self.run_id, kind=finding.kind, severity=finding.severity,
            state="resolved" if brief else "open",
            onset_step=finding.onset_step, detected_step=finding.detected_step,
            nonfinite_step=finding.nonfinite_step,
            lead_steps=_lead(finding.nonfinite_step, finding.detected_step),
            layer=finding.layer, rank=self.rank, session_id=self.session_id, late=self.late,
            evidence=list(finding.evidence), findings=[finding],
        )  # fmt: skip
        self.incidents.append(incident)
        return incident

    def _next_id(self, finding: Finding) -> str:
        """Return an id that names neither rank nor step: an earlier finding of another rank keeps it."""
        born = _birth(finding)
        count = sum(_birth(incident.findings[0]) == born for incident in self.incidents)
        return _digest(self.run_id, self.group or self.session_id, born, str(count))

    def _attach(self, place: int, finding: Finding) -> Incident | None:
        incident = self.incidents[place]
        is_back = incident.state == "resolved" and _is_same_again(finding, incident)
        if len(incident.findings) >= MAX_FINDINGS and not (is_back or _is_of_kind_again(finding)):
            return None
        nonfinite = incident.nonfinite_step
        if nonfinite is None and finding.nonfinite_step is not None:
            nonfinite = finding.nonfinite_step
        critical = "critical" in (incident.severity, finding.severity)
        changed = replace(
            incident,
            severity="critical" if critical else incident.severity,
            state="open" if is_back else "resolved" if _is_over(finding, incident) else incident.state,
            nonfinite_step=nonfinite,
            lead_steps=_lead(nonfinite, incident.detected_step),
            evidence=_added(incident.evidence, finding.evidence),
            findings=_added(incident.findings, (finding,)),
            revision=incident.revision + 1,
        )
        self.incidents[place] = changed
        return changed

    def _close(self, finding: Finding, state: IncidentState) -> Incident | None:
        for place in reversed(range(len(self.incidents))):
            incident = self.incidents[place]
            if incident.state == "open" and any(
                is_end_of(finding, known) for known in _endable(finding, incident)
            ):
                if state == "withdrawn" and incident.nonfinite_step is not None:
                    return None
                if finding.kind == "bad_batch" and _has_open_collapse(incident):
                    return None  # finite losses between the bad ones; the scaler is still going down
                changed = replace(
                    incident, state=state, revision=incident.revision + 1,
                    evidence=_added(incident.evidence, finding.evidence),
                    findings=_added(incident.findings, (finding,)),
                )  # fmt: skip
                self.incidents[place] = changed
                return changed
        return None


def _added(known: list[Told], news: Sequence[Told]) -> list[Told]:
    """Return both; of too many, the first half and the newest."""
    both = [*known, *news]
    spare = len(both) - MAX_FINDINGS
    return both if spare <= 0 else both[: MAX_FINDINGS // 2] + both[MAX_FINDINGS // 2 + spare :]


def _is_same_again(finding: Finding, incident: Incident) -> bool:
    """Whether what was over is back: of the same kind, and of the same nature as far as was counted."""
    first = incident.findings[0] if incident.findings else finding
    grew = "height" in finding.facts or "height" in first.facts
    alike = finding.kind in RECURRING_KINDS and first.kind in RECURRING_KINDS and not grew
    return alike and all(bool(finding.facts.get(name)) == bool(first.facts.get(name)) for name in NATURE)


def _is_of_kind_again(finding: Finding) -> bool:
    return finding.kind in RECURRING_KINDS or finding.kind == "loss_scale_collapse"


def _has_open_collapse(incident: Incident) -> bool:
    told = [item for item in incident.findings if item.kind == "loss_scale_collapse"]
    return bool(told) and told[-1].phase != "resolve"


def _is_consequence(finding: Finding, incident: Incident) -> bool:
    if finding.kind in SIGHTS_OF_THEIR_OWN:
        return False
    if incident.kind in BYSTANDERS and incident.severity != "critical":
        return finding.kind in BYSTANDERS
    if incident.severity == "critical":
        return True
    if incident.severity == "info" or finding.kind in BRIEF_KINDS:
        return False
    if finding.severity != "critical":
        return True
    same_story = finding.onset_step == incident.onset_step
    return same_story or incident.kind in CAUSES_OF_THEIR_OWN


def precedence(finding: Finding) -> tuple[int, int]:
    """Return the order in which findings are entered: by the row that gave them away, then cause first."""
    order = PRECEDENCE.index(finding.kind) if finding.kind in PRECEDENCE else len(PRECEDENCE)
    return finding.detected_step, order


def incident_id(run_id: str, rank: int, session_id: str, finding: Finding) -> str:
    """Return the id that folding the same rows again gives again."""
    return _digest(run_id, str(rank), session_id, finding.key)


def is_end_of(news: Finding, known: Finding) -> bool:
    """Return whether `news` says that `known` is over or was wrong."""
    if news.nonfinite_step is not None:
        return known.nonfinite_step == news.nonfinite_step
    same_kind = known.kind == news.kind or news.kind not in PASSING_KINDS
    return same_kind and known.onset_step == news.onset_step and known.layer == news.layer


def _birth(finding: Finding) -> str:
    return "critical" if finding.severity == "critical" else f"{finding.severity}:{finding.kind}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:20]


def _is_over(finding: Finding, incident: Incident) -> bool:
    return incident.severity == "warning" and finding.facts.get("outcome") == "recovered"


def _endable(news: Finding, incident: Incident) -> Sequence[Finding]:
    return incident.findings[:1] if news.kind in PASSING_KINDS else incident.findings


def _lead(nonfinite_step: int | None, detected_step: int) -> int | None:
    return None if nonfinite_step is None else max(nonfinite_step - detected_step, 0)
