"""A run whose reporter leaves bad updates out is fine: a warning, its count up to date, and it ends."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
import pytest

from traces import NAN, batch_of, learning
from trainvitals.wire import BoolArray, Environment
from trainvitals_server.batch import Batch
from trainvitals_server.detect.recurrence import FRESH_SHARE
from trainvitals_server.fold import scan
from trainvitals_server.incident import Incident

ROWS = 2000
STEP = np.arange(ROWS)
SKIPS = Environment(optimizer="Adam", loss="mse")
SEVENTH = (STEP % 100 == 50) & (STEP > 200)
OFTEN = np.asarray((np.random.default_rng(1).random(ROWS) < 0.2) & (STEP > 100))


def rows(bad: BoolArray, loss_bad: BoolArray | None = None) -> Batch:
    """Return a run in which the updates of the bad rows are left out: the others go on as if nothing was."""
    return batch_of(
        {"loss": np.where(bad if loss_bad is None else loss_bad, NAN, learning(ROWS)),
         "grad_norm": np.where(bad, NAN, 1.0), "grad_nonfinite": 9.0 * bad, "skipped": 1.0 * bad}
    )  # fmt: skip


def only(batch: Batch, *, cut: int = ROWS) -> Incident:
    pieces = [batch.slice(start, min(start + cut, len(batch))) for start in range(0, len(batch), cut)]
    (incident,) = [item for item in scan(pieces, environment=SKIPS) if item.severity != "info"]
    return incident


@cache
def never() -> BoolArray:
    return np.zeros(ROWS, bool)


@pytest.mark.parametrize("is_loss_bad", [True, False])
def test_a_bad_update_that_was_left_out_is_a_warning_and_over_soon(is_loss_bad: bool) -> None:
    incident = only(rows(STEP == 300, None if is_loss_bad else never()))
    assert (incident.severity, incident.state, incident.onset_step) == ("warning", "resolved", 300)
    assert incident.weights.usable is True
    assert "That update was left out." in incident.verdict


@pytest.mark.parametrize("bad", [SEVENTH, OFTEN], ids=["seldom", "often"])
@pytest.mark.parametrize("kind", ["loss", "gradient", "both"])
def test_the_count_that_is_shown_is_never_far_behind(bad: BoolArray, kind: str) -> None:
    loss_bad = {"loss": bad, "gradient": never(), "both": bad & (STEP % 2 == 0)}[kind]
    for end in (700, 1200, ROWS):
        incident = only(rows(bad, loss_bad).slice(0, end))
        words = incident.verdict.split()
        shown, total = int(words[words.index("in") + 1]), int(bad[:end].sum())
        assert (incident.severity, incident.kind in ("sudden_nan", "nonfinite_gradient")) == ("warning", True)
        assert total - 1 - total / FRESH_SHARE <= shown <= total
        assert "each of these updates was left out" in incident.verdict


def test_a_run_that_leaves_out_most_of_its_updates_learns_nothing_and_is_critical() -> None:
    incident = only(rows(STEP >= 300).slice(0, 400))
    assert (incident.severity, incident.state) == ("critical", "open")
    assert incident.findings[0].severity == "warning"
    assert next(item for item in incident.findings if item.severity == "critical").detected_step <= 312
    assert "hardly anything is learned: 24 of the last 24 updates were left out" in incident.verdict


def test_when_updates_are_applied_again_it_is_over() -> None:
    incident = only(rows((STEP >= 300) & (STEP < 420)))
    assert incident.state == "resolved"
    assert "hardly anything" not in incident.verdict
    assert incident.findings[-1].phase == "resolve"


def test_a_divergence_in_such_a_run_is_told_as_one() -> None:
    batch = rows(SEVENTH)
    batch.columns["loss"].values[1000:] += 0.3 * 1.1 ** (STEP[1000:] - 1000.0)
    kinds = {item.kind: item.severity for item in scan([batch], environment=SKIPS)}
    assert kinds["gradual_divergence"] == "critical"


def test_a_loss_scaler_that_skips_is_another_matter() -> None:
    scaled = Environment(optimizer="Adam", loss="mse", loss_scaling=True)
    incidents = scan([rows(STEP == 300)], environment=scaled)
    assert [(item.kind, item.severity) for item in incidents if item.kind == "sudden_nan"] == [
        ("sudden_nan", "critical")
    ]


@pytest.mark.parametrize("bad", [SEVENTH, OFTEN, STEP >= 300], ids=["seldom", "often", "always"])
def test_the_pieces_in_which_rows_come_change_nothing(bad: BoolArray) -> None:
    batch = rows(bad, bad & (STEP % 3 > 0))
    assert msgspec.msgpack.encode(only(batch, cut=7)) == msgspec.msgpack.encode(only(batch))


def test_the_steps_are_counted_also_where_rows_do_not_say_whether_they_were_left_out() -> None:
    batch = rows(SEVENTH)
    batch.columns["skipped"].present[(STEP % 2 == 1) & ~SEVENTH] = False
    assert "not finite in 3 of 201 steps since step 250;" in only(batch.slice(0, 451)).verdict
