"""What comes again, or goes on beside something else, is told within the incident that it belongs to."""

from __future__ import annotations

import msgspec
import numpy as np

from traces import NAN, batch_of, learning
from trainvitals.wire import BoolArray, Environment, FloatArray
from trainvitals_server.batch import Batch
from trainvitals_server.fold import scan
from trainvitals_server.incident import Incident

ROWS = 1000


def loud(batch: Batch, env: Environment | None = None, *, cut: int = ROWS) -> list[Incident]:
    pieces = [batch.slice(start, min(start + cut, len(batch))) for start in range(0, len(batch), cut)]
    return [item for item in scan(pieces, environment=env) if item.severity != "info"]


def now_and_then(share: float = 0.16, *, first: int = 40) -> BoolArray:
    return np.asarray((np.random.default_rng(3).random(ROWS) < share) & (np.arange(ROWS) >= first))


def sinking(bad: BoolArray) -> tuple[Batch, FloatArray]:
    """Skip the bad rows; each of them halves the scale, down to where a float32 is 0."""
    halvings = np.concatenate(([0], np.cumsum(bad)[:-1]))
    scale = np.where(halvings > 164, 0.0, 2.0 ** (15 - halvings.astype(float)))
    loss = np.where(bad, NAN, learning(ROWS))
    columns = {
        "loss": loss, "grad_norm": np.where(bad, NAN, 1.0), "grad_nonfinite": 4.0 * bad,
        "loss_scale": scale, "skipped": 1.0 * bad,
    }  # fmt: skip
    return batch_of(columns), np.asarray(scale)


def test_a_nan_that_comes_and_goes_is_one_incident() -> None:
    bad = now_and_then()
    (incident,) = loud(batch_of({"loss": np.where(bad, NAN, learning(ROWS))}))
    assert (incident.kind, incident.state, incident.onset_step) == ("sudden_nan", "open", int(bad.argmax()))


def test_a_nan_that_comes_and_goes_is_counted() -> None:
    bad = now_and_then()
    (incident,) = loud(batch_of({"loss": np.where(bad, NAN, learning(ROWS))}))
    last = incident.findings[-1].detected_step
    first = int(bad.argmax())
    count = int(bad[: last + 1].sum())
    assert incident.verdict.startswith(
        f"The loss is not finite in {count} of {last + 1 - first} steps since step {first}."
    )


def test_a_nan_that_comes_again_opens_the_incident_that_was_over() -> None:
    bad = np.isin(np.arange(ROWS), (200, 600))
    (incident,) = loud(batch_of({"loss": np.where(bad, NAN, learning(ROWS))}))
    assert [item.phase for item in incident.findings] == ["open", "resolve", "open", "resolve"]
    assert (incident.revision, incident.state) == (4, "resolved")


def test_a_nan_of_another_nature_is_another_incident() -> None:
    bad = np.isin(np.arange(ROWS), (200, 600))
    inputs = np.where(np.arange(ROWS) == 600, 3.0, 0.0)
    batch = batch_of(
        {"loss": np.where(bad, NAN, learning(ROWS)), "input_nonfinite": inputs},
        present={"input_nonfinite": bad},
    )
    assert [item.onset_step for item in loud(batch)] == [200, 600]


def test_the_pieces_in_which_rows_come_change_nothing() -> None:
    batch, _ = sinking(now_and_then())
    assert msgspec.msgpack.encode(loud(batch, cut=7)) == msgspec.msgpack.encode(loud(batch))


def test_a_scale_that_sinks_after_a_nan_is_its_consequence() -> None:
    batch, scale = sinking(now_and_then())
    (incident,) = loud(batch)
    assert incident.kind == "sudden_nan"
    first = next(item for item in incident.findings if item.kind == "loss_scale_collapse")
    assert 2.0**-6 <= scale[first.detected_step] <= 1.0
    assert "updates and the scale fell from 32768 to" in incident.verdict
    assert any("before the scale reaches 0" in line for line in incident.next)


def test_the_weights_are_lost_where_the_scale_is_0() -> None:
    batch, scale = sinking(now_and_then(0.3))
    (incident,) = loud(batch)
    empty = int((scale == 0).argmax())
    assert incident.weights.usable is False
    assert empty <= (incident.weights.bad_since or 0) <= empty + 20


def test_a_scale_that_holds_is_no_collapse() -> None:
    bad = np.isin(np.arange(ROWS), range(100, ROWS, 60))
    batch, scale = sinking(bad)
    assert scale.min() > 0.5
    assert "loss_scale_collapse" not in [item.kind for incident in loud(batch) for item in incident.findings]


def test_weights_are_bad_from_the_step_that_wrote_them() -> None:
    """The weights of a row are counted before its update, and only in rows with something non-finite."""
    step = np.arange(ROWS)
    bad = np.isin(step, (46, 104))
    loss = np.where(bad, NAN, learning(ROWS))
    batch = batch_of(
        {"loss": loss, "grad_norm": np.where(bad, NAN, 1.0), "grad_nonfinite": 4.0 * bad,
         "weight_nonfinite": np.where(step == 104, 9.0, 0.0)},
        present={"weight_nonfinite": bad},
    )  # fmt: skip
    for rows in (50, 90, 104, 105, ROWS):
        (incident,) = loud(batch.slice(0, rows), Environment(loss="mse"))
        assert (incident.weights.usable, incident.weights.bad_since) == (False, 46)
    assert "Weights saved from step 46 on are unusable; those saved before step 46 are good." in incident.why


def test_a_skip_amid_a_divergence_is_not_called_normal() -> None:
    row = np.arange(600)
    loss = learning(600) + np.where(row >= 300, 0.3 * 1.1 ** (row - 300.0), 0.0)
    skipped = 1.0 * np.isin(row, (0, 1, 9, 500))
    batch = batch_of({"loss": loss, "loss_scale": np.full(600, 1024.0), "skipped": skipped})
    (told,) = [item for item in scan([batch]) if item.kind == "transient_overflow"]
    assert told.verdict.startswith("The loss scaler skipped 3 updates")
    assert [item.step for item in told.evidence] == [0, 1, 9]
    others = [item for item in scan([batch]) if item.kind != "transient_overflow"]
    assert "transient_overflow" not in [item.kind for incident in others for item in incident.findings]
