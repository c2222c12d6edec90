"""An update that the reporter itself leaves out is no loss scaler's skip."""

from __future__ import annotations

import numpy as np
import pytest

from trainvitals.wire import Environment
from trainvitals_server.batch import Batch, Series
from trainvitals_server.fold import scan

ROWS = 60


def run_with_dropped_updates() -> Batch:
    """Return rows whose gradients go bad at step 40, five times, while the loss is finite."""
    bad = np.zeros(ROWS, dtype=bool)
    bad[40:45] = True
    columns = {
        "loss": 1.0 / (1 + np.arange(ROWS)),
        "grad_norm": np.where(bad, np.nan, 1.0),
        "grad_nonfinite": np.where(bad, 7.0, 0.0),
        "skipped": bad.astype(float),
    }
    present = np.ones(ROWS, dtype=bool)
    series = {name: Series(values, present) for name, values in columns.items()}
    return Batch(steps=np.arange(ROWS), columns=series)


@pytest.mark.parametrize(
    ("environment", "kind"),
    [
        (Environment(optimizer="Adam"), "nonfinite_gradient"),
        (Environment(optimizer="Adam", loss_scaling=True), "transient_overflow"),
        (Environment(), "transient_overflow"),  # a log that tells nothing else: who skips has a scaler
    ],
)
def test_who_left_the_update_out_is_told_by_the_optimizer(environment: Environment, kind: str) -> None:
    incidents = scan([run_with_dropped_updates()], environment=environment)
    assert incidents[0].kind == kind
    assert incidents[0].onset_step == 40
