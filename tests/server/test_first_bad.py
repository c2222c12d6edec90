"""A report of a replayed step finds its incident: before its rows or after, over restarts, from any rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from traces import collapse, gradient_first, gradual, sudden
from trainvitals.wire import Event, Hello
from trainvitals_server.batch import Batch
from trainvitals_server.first_bad import MAX_REPORTS, kept
from trainvitals_server.fold import RunFold
from trainvitals_server.incident import Incident

REPORT: dict[str, Any] = {
    "found": "operation", "is_reproduced": True, "operation": "Log", "direction": "forward", "layer": "prob",
    "inputs": [{"name": "0", "dtype": "float32", "shape": [4], "min": 0.0, "max": 0.9}],
}  # fmt: skip
NAN_STEP = 200


def begun(ranks: int = 1) -> RunFold:
    fold = RunFold("run")
    for rank in range(ranks):
        fold.hello(Hello(run_id="run", session_id=f"s{rank}", rank=rank, world_size=ranks))
    return fold


def report(fold: RunFold, step: int, rank: int = 0, **more: object) -> list[Incident]:
    event = Event(seq=1, step=step, kind="autopsy", data={"step": step, **REPORT, **more})
    return fold.event(rank, f"s{rank}", event)


def content(fold: RunFold) -> list[bytes]:
    """Return the incidents without how often they were told; as bytes, where NaN equals NaN."""
    return [msgspec.msgpack.encode(replace(incident, revision=0)) for incident in fold.incidents()]


def restarted(fold: RunFold) -> RunFold:
    return RunFold.load(fold.dump())


def test_a_report_after_the_rows_is_news_of_the_incident() -> None:
    fold = begun()
    (opened,) = fold.rows(0, "s0", sudden())
    (told,) = report(fold, NAN_STEP)
    assert told.id == opened.id
    assert told.revision == opened.revision + 1
    assert (opened.first_bad_operation, opened.layer) == (None, None)
    assert (told.causes[0].cause, told.layer) == ("log_of_zero", "prob")


@pytest.mark.parametrize("between", [restarted, lambda fold: fold])
def test_before_the_rows_or_after_them_the_incident_is_the_same(
    between: Callable[[RunFold], RunFold],
) -> None:
    after, before = begun(), begun()
    after.rows(0, "s0", sudden())
    after = between(after)
    report(after, NAN_STEP)
    report(before, NAN_STEP)
    before = between(before)
    before.rows(0, "s0", sudden())
    assert content(before) == content(after)
    assert after.incidents()[0].first_bad_operation is not None


def test_a_report_that_comes_again_is_no_news() -> None:
    fold = begun()
    fold.rows(0, "s0", sudden())
    report(fold, NAN_STEP)
    assert report(restarted(fold), NAN_STEP) == []


def test_rows_that_come_later_keep_the_report() -> None:
    fold, rows = begun(), sudden()
    fold.rows(0, "s0", rows.slice(0, NAN_STEP + 1))
    report(fold, NAN_STEP)
    fold.rows(0, "s0", rows.slice(NAN_STEP + 1, len(rows)))
    assert all(incident.first_bad_operation for incident in fold.incidents())


@pytest.mark.parametrize(
    ("rows", "step"),
    [
        (gradient_first, 80),  # of the gradient
        (gradient_first, 81),  # the loss follows
        (collapse, 9),  # skips that last
    ],
)
def test_a_report_of_a_later_step_of_the_same_trouble_explains_it(
    rows: Callable[[], Batch], step: int
) -> None:
    fold = begun()
    fold.rows(0, "s0", rows())
    assert len(report(fold, step)) == 1


def test_of_several_reports_the_earliest_that_found_something_explains() -> None:
    fold = begun()
    fold.rows(0, "s0", gradient_first())
    report(fold, 80, found="nothing")
    report(fold, 82, layer="second")
    report(fold, 81, layer="first")
    assert fold.incidents()[0].layer == "first"


@pytest.mark.parametrize("step", [0, 199, 900])
def test_a_report_of_another_step_explains_nothing(step: int) -> None:
    fold = begun()
    fold.rows(0, "s0", sudden())
    assert report(fold, step) == []
    assert fold.incidents()[0].first_bad_operation is None


def test_weights_that_an_incident_has_spoiled_do_not_explain_it() -> None:
    fold = begun()
    fold.rows(0, "s0", gradient_first())
    assert report(fold, 81, found="weight") == []
    assert len(report(fold, 80, found="weight")) == 1


def test_the_non_finite_end_of_a_divergence_is_its_report_s_step() -> None:
    fold = begun()
    fold.rows(0, "s0", gradual())
    (incident,) = [item for item in fold.incidents() if item.severity == "critical"]
    assert incident.nonfinite_step is not None
    assert [item.id for item in report(fold, incident.nonfinite_step)] == [incident.id]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("is_early", [True, False])
def test_a_report_of_any_rank_explains_the_incident_of_all(rank: int, is_early: bool) -> None:
    fold = begun(ranks=2)
    if is_early:
        report(fold, NAN_STEP, rank)
    for place in range(2):
        fold.rows(place, f"s{place}", sudden())
    news = [] if is_early else report(fold, NAN_STEP, rank)
    (incident,) = fold.incidents()
    assert (incident.causes[0].cause, incident.layer) == ("log_of_zero", "prob")
    assert [item.id for item in news] == ([] if is_early else [incident.id])


def test_a_rank_whose_own_rows_are_fine_may_explain() -> None:
    fold = begun(ranks=2)
    rows = sudden()
    fold.rows(0, "s0", rows)
    fold.rows(1, "s1", rows.slice(0, 150))
    assert len(report(fold, NAN_STEP, rank=1)) == 1


def test_the_reports_of_a_session_are_bounded() -> None:
    reports: list[dict[str, Any]] = []
    for step in range(2 * MAX_REPORTS):
        reports = kept(reports, step, REPORT)
    assert [item["step"] for item in reports] == list(range(MAX_REPORTS))


def one_kept(**more: object) -> dict[str, Any]:
    (found,) = kept([], 1, {**REPORT, **more})
    return found


def test_what_is_too_long_in_a_report_is_cut_and_the_rest_still_explains() -> None:
    found = one_kept(
        code="x" * 100_000, layer="y" * 60_000, notes=["z" * 5_000] * 500, samples=list(range(5_000)),
        inputs=REPORT["inputs"] * 700, later="l" * 100_000,
        output={"name": "o", "dtype": "float32", "shape": [1] * 5_000},
    )  # fmt: skip
    assert (found["operation"], found["direction"], found["inputs"][0]) == (
        "Log", "forward", REPORT["inputs"][0],
    )  # fmt: skip
    assert found["code"].startswith("xxx")
    assert found["code"].endswith("…")
    assert len(found["layer"]) < 300
    assert found["samples"] == list(range(32))
    assert len(msgspec.msgpack.encode(found)) < 16_000


def test_samples_that_were_shared_stay_out_of_the_incident() -> None:
    shared = [{"samples": [0], "dtype": "float32", "shape": [9], "values": [0.5] * 1024}] * 16
    assert one_kept(batch=shared, of_a_later_client=[1]) == one_kept(of_a_later_client=[1])


@pytest.mark.parametrize(
    "odd", [{"code": 5}, {"function": [1]}, {"is_reproduced": "x"}, {"notes": [7]}], ids=str
)
def test_a_report_that_the_page_could_not_read_is_left_out(odd: dict[str, object]) -> None:
    assert kept([], 1, {**REPORT, **odd}) == []


def test_what_the_page_shows_of_a_report_is_kept_as_it_came() -> None:
    shown = {
        "file": "/home/me/model.py", "line": 42, "function": "call", "code": "x = tf.math.log(p)", "n_bad": 3,
        "feature": 2, "samples": [3, 17], "n_bad_samples": 2, "batch_size": 32, "bundle": "/spool/bundles/a",
        "notes": ["a note"], "is_reproduced": False, "took_s": 0.25, "weights_from": "snapshot",
        "gradient_of": "Sqrt", "is_unselected": True, "computed_from": ["x"], "weights_bad_since": 4,
    }  # fmt: skip
    assert one_kept(**shown) == {**REPORT, **shown, "step": 1}
