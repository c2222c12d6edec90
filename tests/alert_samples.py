"""Incidents and endpoints that the tests of the alerts send."""

from __future__ import annotations

import math
import sqlite3

import msgspec

from trainvitals_server.alert.endpoint import Endpoint
from trainvitals_server.finding import Evidence, Finding
from trainvitals_server.incident import Cause, Incident, Weights
from trainvitals_server.store.endpoints import save_endpoint

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="

INCIDENT = Incident(
    id="inc1",
    run_id="run1",
    kind="gradual_divergence",
    severity="critical",
    onset_step=812,
    detected_step=840,
    nonfinite_step=901,
    lead_steps=61,
    layer="dense_1",
    verdict="The loss left its band at step 812 and kept rising.",
    why=["The loss rose 30 times in 40 steps."],
    next=["Lower the learning rate to 0.01."],
    causes=[
        Cause(
            cause="learning_rate_too_high",
            confidence=0.8,
            supports=["gradient norm led the loss"],
            fix="Use a lower learning rate.",
            snippet="optimizer = keras.optimizers.SGD(0.01)",
        )
    ],
    evidence=[
        Evidence(text="not a number", series="loss", step=901, value=math.nan),
        Evidence(text="overflow", series="grad_norm", step=900, value=math.inf),
        Evidence(text="log of zero", series="loss", step=899, value=-math.inf),
        Evidence(text="not measured", series="loss_scale", step=898, value=None),
    ],
)
SINKING = Finding(
    kind="loss_scale_collapse", severity="critical", onset_step=902, detected_step=930,
    facts={"loss_scale": 64.0, "steps_to_scale_zero": 93.4},
)  # fmt: skip
SINKING_TEXT = "the loss scale is sinking, and at this pace is 0 in about 93 steps"


def at_stake(incident: Incident, *, sinks: bool = False, usable: bool | None = None) -> Incident:
    """Return the incident with what its scale and its weights came to."""
    findings = [SINKING] if sinks else []
    return msgspec.structs.replace(incident, findings=findings, weights=Weights(usable=usable))


def endpoint(url: str = "http://127.0.0.1:9/", *, endpoint_id: str = "hook1", **fields: object) -> Endpoint:
    """Return an endpoint that posts to `url`."""
    values: dict[str, object] = {"format": "generic", "secret": SECRET, "created_at": 0.0, **fields}
    return Endpoint(endpoint_id=endpoint_id, url=url, **values)  # type: ignore[arg-type]  # fields of tests


def add_run_and_endpoint(c: sqlite3.Connection, hook: Endpoint, run_id: str = "run1") -> None:
    """Give the database the run of `INCIDENT` and one endpoint."""
    c.execute(
        "INSERT OR IGNORE INTO run (run_id, project, name, created_at, last_seen_at, environment)"
        " VALUES (?, 'resnet', 'lr 3e-4', 0, 0, x'')",
        (run_id,),
    )
    save_endpoint(c, hook)
