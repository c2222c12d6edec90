"""A loss scale that goes down in many bursts with updates between them."""

from __future__ import annotations

import numpy as np
import pytest

from trainvitals_server.batch import Batch, Series
from trainvitals_server.fold import scan
from trainvitals_server.incident import Incident

ROWS = 1200
SKIP_EVERY = 20


def _told(lowest: float) -> list[Incident]:
    """Scan a run that learns while every 20th update is skipped; its scaler halves down to `lowest`."""
    rng = np.random.default_rng(3)
    skipped = np.arange(ROWS) % SKIP_EVERY == SKIP_EVERY - 1
    scale = np.maximum(2.0**15 * 0.5 ** np.concatenate(([0], np.cumsum(skipped)[:-1])), lowest)
    columns = {
        "loss": 2.0 * np.exp(-np.arange(ROWS) / 400) + 0.05 * rng.normal(size=ROWS),
        "grad_norm": np.where(skipped, np.inf, rng.lognormal(0.0, 0.1, ROWS)),
        "grad_nonfinite": np.where(skipped, 3.0, 0.0),
        "loss_scale": scale,
        "skipped": skipped.astype(float),
    }
    present = np.ones(ROWS, dtype=bool)
    batch = Batch(np.arange(ROWS), {name: Series(values, present) for name, values in columns.items()})
    return scan([batch])


def _critical(incidents: list[Incident]) -> list[str]:
    return [incident.kind for incident in incidents if incident.severity == "critical"]


@pytest.mark.parametrize("lowest", [1.0, 0.25, 128.0])
def test_a_low_scale_with_a_floor_and_a_falling_loss_pages_nobody(lowest: float) -> None:
    assert _critical(_told(lowest)) == []


def test_a_scale_that_heads_for_zero_is_told_long_before_it_is_there() -> None:
    incidents = _told(0.0)
    assert _critical(incidents) == ["loss_scale_collapse"]
    assert incidents[-1].detected_step < ROWS // 2
