"""Liveness: which sessions have stalled or crashed, from what they promised and the server's clock. Pure.

A session promises when it is heard from next (`Heartbeat.next_within_s`; every frame counts as a word). A
promise that is not kept is a stall; one that is not kept long after, or whose connection is gone as well, is
a crash. A connection that is gone for a while is a stall already, whatever was promised: a process that was
killed in a long validation looks like this. A `Bye` with status `failed` is a crash that says why. The caller
stores what `watch` returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from trainvitals_server.book import incident_id
from trainvitals_server.detect.rows import Flags
from trainvitals_server.finding import Evidence, Finding, Kind, Severity
from trainvitals_server.incident import Incident, Weights

GRACE_S = 15.0  # a busy network, a server that was restarted
DEFAULT_PROMISE_S = 60.0  # for a session that sent frames but never promised anything
LOST_S = 60.0  # a client that lost its connection is back by then: it tries every 30 s
CRASH_AFTER_S = 300.0  # silent so long beyond its promise, nobody is there any more
LIVENESS_KINDS = ("run_stalled", "run_crashed")

LifeState = Literal["running", "stalled", "crashed", "finished", "interrupted", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class Life:
    """What the server knows of one session. `status` is that of its Bye, None while it lives.

    `is_connected` is False once its socket is closed, at `left_at`; None where that says nothing (HTTP).
    """

    run_id: str
    rank: int
    session_id: str
    last_seen_at: float
    promised_at: float | None = None
    last_step: int | None = None
    status: Literal["finished", "interrupted", "failed", "stopped"] | None = None
    error: str = ""
    is_late: bool = False
    is_connected: bool | None = None
    left_at: float | None = None
    last_checkpoint_step: int | None = None

    @property
    def due_at(self) -> float:
        """When the session must have been heard from."""
        return max(
            self.promised_at or 0.0, self.last_seen_at + (0 if self.promised_at else DEFAULT_PROMISE_S)
        )


def state_of(life: Life, now: float) -> LifeState:
    """Return how the session is at `now`."""
    if life.status is not None:
        return life.status
    overdue_s = now - life.due_at
    if overdue_s <= GRACE_S:
        left_at = life.left_at if life.is_connected is False else None
        return "running" if left_at is None or now - left_at <= LOST_S else "stalled"
    if life.is_connected is False or overdue_s > CRASH_AFTER_S:
        return "crashed"
    return "stalled"


def watch(lives: Iterable[Life], known: Iterable[Incident], now: float) -> list[Incident]:
    """Return the incidents that are new or changed at `now`; `known` are those of these runs stored so far.

    A crash after a critical incident that is still open is its consequence: it is attached to it.
    """
    stored = {incident.id: incident for incident in known}
    changed: dict[str, Incident] = {}
    for life in lives:
        if not life.is_late:
            for incident in _judge(life, list((stored | changed).values()), now):
                changed[incident.id] = incident
    return list(changed.values())


def _judge(life: Life, known: list[Incident], now: float) -> list[Incident]:
    state = state_of(life, now)
    own = [item for item in known if item.kind in LIVENESS_KINDS and _is_about(item, life)]
    still_open = [incident for incident in own if incident.state == "open"]
    if state not in ("stalled", "crashed", "failed"):
        return [_resolved(incident, life, state) for incident in still_open]
    finding = _finding(life, state, now)
    cause = _cause_of(life, known) if finding.severity == "critical" else None
    if cause is not None and not any(incident.severity == "critical" for incident in still_open):
        return [] if any(_is_same(finding, item) for item in cause.findings) else [_attached(cause, finding)]
    if not still_open:
        incident = _incident(life, finding)
        return [] if any(item.id == incident.id for item in own) else [incident]
    return [_escalated(incident, finding) for incident in still_open if _gets_worse(incident, finding)]


def _cause_of(life: Life, known: list[Incident]) -> Incident | None:
    """Return the critical incident of this session, or of another rank, that a crash is a consequence of."""
    for incident in known:
        is_here = incident.run_id == life.run_id and not incident.late
        is_ours = incident.session_id == life.session_id or incident.rank != life.rank
        is_bad = incident.severity == "critical" and incident.state == "open"
        if is_here and is_ours and is_bad and incident.kind not in LIVENESS_KINDS:
            return incident
    return None


def _attached(incident: Incident, finding: Finding) -> Incident:
    return replace(
        incident,
        findings=[*incident.findings, finding],
        evidence=[*incident.evidence, *finding.evidence],
        why=[*incident.why, *(f"Then {item.text}." for item in finding.evidence)],
        revision=incident.revision + 1,
    )


def _is_same(finding: Finding, known: Finding) -> bool:
    there = ("session", "rank")
    return finding.kind == known.kind and all(finding.facts[name] == known.facts.get(name) for name in there)


def _finding(life: Life, state: LifeState, now: float) -> Finding:
    step = life.last_step or 0
    kind: Kind = "run_stalled" if state == "stalled" else "run_crashed"
    severity: Severity = "warning" if state == "stalled" else "critical"
    if state == "failed":
        text = f"training ended with an error: {life.error or 'none was reported'}"
    else:
        text = f"nothing was heard for {now - life.last_seen_at:.0f} s; the last step is {step}"
    facts: Flags = {"rank": life.rank, "session": life.session_id}
    if life.error:
        facts["error"] = life.error
    return Finding(
        kind=kind, severity=severity, onset_step=step, detected_step=step,
        evidence=(Evidence(text=text, step=step),), facts=facts,
    )  # fmt: skip


def _incident(life: Life, finding: Finding) -> Incident:
    return _in_words(
        Incident(
            id=incident_id(life.run_id, life.rank, life.session_id, finding),
            run_id=life.run_id, kind=finding.kind, severity=finding.severity,
            onset_step=finding.onset_step, detected_step=finding.detected_step,
            rank=life.rank, session_id=life.session_id, evidence=list(finding.evidence), findings=[finding],
            weights=Weights(last_checkpoint_step=life.last_checkpoint_step),
        )
    )  # fmt: skip


def _gets_worse(incident: Incident, finding: Finding) -> bool:
    return finding.severity == "critical" and incident.severity != "critical"


def _escalated(incident: Incident, finding: Finding) -> Incident:
    return _in_words(
        replace(
            incident,
            severity="critical",
            findings=[*incident.findings, finding],
            evidence=[*incident.evidence, *finding.evidence],
            revision=incident.revision + 1,
        )
    )


def _resolved(incident: Incident, life: Life, state: LifeState) -> Incident:
    text = (
        f"heard again, now at step {life.last_step}" if state == "running" else f"the session ended: {state}"
    )
    return _in_words(
        replace(
            incident, state="resolved", revision=incident.revision + 1,
            evidence=[*incident.evidence, Evidence(text=text, step=life.last_step)],
        )
    )  # fmt: skip


def _in_words(incident: Incident) -> Incident:
    step, last = incident.onset_step, incident.findings[-1]
    if last.facts.get("error"):
        verdict = f"Training ended with an error after step {step}: {last.facts['error']}"
        then = ["Read the traceback in the training's own log."]
    elif last.kind == "run_crashed":
        verdict = f"The process is gone: nothing since step {step}, and it ended without reporting its end."
        then = ["Look for the process: killed for memory, pre-empted, machine down?",
                "What it could not send lies in its spool: `trainvitals sync DIR`."]  # fmt: skip
    else:
        verdict = f"The run has stalled: nothing since step {step}."
        then = ["Look at the process: input pipeline, a hanging worker, a full disk, a network file system?"]
    if incident.state == "resolved":
        verdict += " It is over."
    return replace(incident, verdict=verdict, why=[item.text for item in incident.evidence], next=then)


def _is_about(incident: Incident, life: Life) -> bool:
    there = (incident.run_id, incident.rank, incident.session_id)
    return there == (life.run_id, life.rank, life.session_id)
