"""Log units: what the rows of a log are, and an incident in those words. Pure.

A log that is written once an epoch says nothing of single steps or batches: its incidents speak of epochs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from trainvitals_server.finding import Evidence
from trainvitals_server.incident import Cause, Incident

Unit = Literal["step", "epoch", "row"]

# Only what counts rows: the "failing step" that is to be run again is one of the training's.
_NUMBERED = re.compile(r"\b([Ss])tep(s?)(?= \d)")
_COUNTED = re.compile(r"(?<=\d )step(s?)\b")
_FIRST = re.compile(r"\b(very first|first|finite) step(s?)\b")
_BATCH = re.compile(r"\b(this|one|each) batch\b")
_FIRST_BATCH = re.compile(r"\bthe very first batch\b")


def in_units(incident: Incident, unit: Unit) -> Incident:
    """Return the incident with its words for rows of this kind."""
    if unit == "step":
        return incident
    return replace(
        incident,
        verdict=_said(incident.verdict, unit),
        why=[_said(line, unit) for line in incident.why],
        next=[_said(line, unit) for line in incident.next],
        causes=[_cause(cause, unit) for cause in incident.causes],
        evidence=_evidence(incident.evidence, unit),
        findings=[replace(one, evidence=tuple(_evidence(one.evidence, unit))) for one in incident.findings],
    )


def _cause(cause: Cause, unit: Unit) -> Cause:
    return replace(
        cause,
        supports=[_said(line, unit) for line in cause.supports],
        against=[_said(line, unit) for line in cause.against],
        fix=_said(cause.fix, unit),
    )


def _evidence(told: Sequence[Evidence], unit: Unit) -> list[Evidence]:
    return [replace(item, text=_said(item.text, unit)) for item in told]


def _said(text: str, unit: Unit) -> str:
    text = _NUMBERED.sub(lambda found: f"{unit.capitalize() if found[1] == 'S' else unit}{found[2]}", text)
    text = _COUNTED.sub(rf"{unit}\1", text)
    text = _FIRST.sub(rf"\1 {unit}\2", text)
    text = _FIRST_BATCH.sub(f"the batches of the first {unit}", text)
    return _BATCH.sub(rf"\1 {unit}", text)
