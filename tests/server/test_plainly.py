"""A mistake in the diagnosis costs the diagnosis, not the alarm."""

from __future__ import annotations

import pytest

from failures import failing
from trainvitals_server.case import Context
from trainvitals_server.fold import scan
from trainvitals_server.incident import Incident


def broken(incident: Incident, context: Context) -> Incident:
    raise KeyError("a cause that has no text")


def test_an_incident_that_cannot_be_diagnosed_is_told_with_its_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = [failing("sudden_nan", 3).batch]
    whole = next(incident for incident in scan(batches) if incident.severity == "critical")
    monkeypatch.setattr("trainvitals_server.plainly.tell", broken)
    plain = next(incident for incident in scan(batches) if incident.severity == "critical")
    assert (plain.id, plain.kind, plain.severity) == (whole.id, whole.kind, whole.severity)
    assert (plain.onset_step, plain.detected_step) == (whole.onset_step, whole.detected_step)
    assert plain.verdict == f"sudden nan since step {whole.onset_step}."
    assert plain.why[0].startswith("the loss is NaN")
    assert "KeyError: 'a cause that has no text'" in plain.why[-1]
    assert plain.causes == []
