"""The scores count what the page says they count."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from scoring.__main__ import main
from scoring.page import PROGRAMS_HEADING, render
from scoring.programs import expectation, judge
from scoring.tally import by_class, confusion, healthy, quantile
from scoring.traces import LABELS, SUFFIX, Label, Outcome, outcome
from trainvitals_server.finding import Kind, Severity
from trainvitals_server.incident import Incident

FIXTURES = Path(__file__).parent / "fixtures/traces"
GRADUAL = Label("a", "gradual_divergence_to_nan", onset_step=100, nonfinite_step=200)
CALM = Label("b", "healthy")


def incident(kind: Kind, step: int, severity: Severity = "critical") -> Incident:
    return Incident(id="i", run_id="r", kind=kind, severity=severity, onset_step=step, detected_step=step)


def told(kind: str, step: int, severity: str = "critical", **more: object) -> dict[str, Any]:
    return {"kind": kind, "severity": severity, "onset_step": step, "detected_step": step, **more}


def test_a_warning_in_time_has_a_lead_and_its_share() -> None:
    found = outcome(GRADUAL, [incident("gradual_divergence", 120)])
    assert (found.is_seen, found.is_named, found.is_early) == (True, True, True)
    assert (found.lead, found.share) == (80, 0.8)


def test_the_first_critical_incident_counts() -> None:
    found = outcome(GRADUAL, [incident("gradual_divergence", 150), incident("loss_spike", 110)])
    assert (found.first, found.is_named) == ("loss_spike", False)


def test_what_comes_long_after_the_nan_is_not_seen() -> None:
    assert outcome(GRADUAL, [incident("gradual_divergence", 300)]).is_seen
    assert not outcome(GRADUAL, [incident("gradual_divergence", 301)]).is_seen


def test_a_note_is_enough_only_where_nothing_is_lost() -> None:
    note = incident("loss_spike", 5, "info")
    assert outcome(Label("c", "spike_recovers"), [note]).is_named
    assert not outcome(Label("c", "early_divergence", onset_step=5), [note]).is_seen


def test_a_divergence_without_a_nan_has_a_delay() -> None:
    assert (
        outcome(Label("c", "finite_divergence", onset_step=10), [incident("fast_divergence", 14)]).delay == 4
    )


def test_pages_and_notes_of_healthy_runs_are_counted_apart() -> None:
    noisy = outcome(CALM, [incident("loss_spike", 1), incident("plateau", 2, "warning")], rows=500)
    tally = healthy([noisy, outcome(CALM, [incident("plateau", 2, "info")], rows=500)])
    assert (tally.runs, tally.rows, tally.paged, tally.noted) == (2, 1000, ("b",), ("b",))


def test_the_confusion_table_tells_what_was_told_first() -> None:
    outcomes = [outcome(GRADUAL, [incident("fast_divergence", 120)]), outcome(CALM, [])]
    assert confusion(outcomes) == {
        "gradual_divergence_to_nan": {"fast_divergence": 1},
        "healthy": {"nothing": 1},
    }


def test_the_low_quantile_of_leads_is_that_of_numpy() -> None:
    assert quantile([1, 2, 3, 4, 5], 0.1) == pytest.approx(1.4)
    assert quantile([], 0.1) is None


EXPECT = {"label": "sudden_nan:log0", "healthy": False, "onset_step": 10, "first_bad": "dense/kernel"}


def test_a_failing_program_is_judged_on_its_first_loud_incident() -> None:
    cause = [{"cause": "log_of_zero"}]
    right = told("sudden_nan", 12, layer="dense", causes=cause)
    found = judge("p", EXPECT, [told("loss_spike", 3, "info"), right], is_whole=True)
    assert (found.is_ok, found.is_onset_right, found.is_layer_right, found.is_cause_right) == (True,) * 4
    late = judge("p", EXPECT, [told("sudden_nan", 13, layer="head", causes=[])], is_whole=True)
    assert (late.is_ok, late.is_onset_right, late.is_layer_right, late.is_cause_right) == (
        True,
        False,
        False,
        False,
    )


def test_a_second_loud_incident_or_a_lost_step_is_not_right() -> None:
    first = told("sudden_nan", 10)
    assert not judge("p", EXPECT, [first, told("loss_spike", 50, "warning")], is_whole=True).is_ok
    assert not judge("p", EXPECT, [first], is_whole=False).is_ok


def test_a_healthy_program_may_be_noted_once() -> None:
    calm = {"label": "healthy", "healthy": True}
    note = told("loss_spike", 1, "warning")
    assert judge("p", calm, [note], is_whole=True).is_ok
    assert not judge("p", calm, [note, note], is_whole=True).is_ok
    assert not judge("p", calm, [told("loss_spike", 1)], is_whole=True).is_ok


def test_the_expectation_is_read_without_running_the_program() -> None:
    assert expectation("import nowhere\nEXPECT = {'label': 'a',\n  'healthy': True}\n") == {
        "label": "a",
        "healthy": True,
    }


def outcomes() -> list[Outcome]:
    return [
        outcome(GRADUAL, [incident("gradual_divergence", 120)], rows=300, judging_s=3e-3),
        outcome(CALM, [], rows=700, judging_s=7e-3),
    ]


def test_the_page_tells_counts_rates_and_cost() -> None:
    page = render(outcomes(), 3, [judge("p", EXPECT, [told("sudden_nan", 10)], is_whole=True)])
    assert "5 real training logs" in page
    assert "| `gradual_divergence_to_nan` | 1 | 1 | 1 | 1 |" in page
    assert "| `gradual_divergence_to_nan` | 1 of 1 | 80.0 | 80.0 | 0.80 | 0.80 |" in page
    assert "Detecting takes 10.0 µs a row" in page
    assert "| `p` | `sudden_nan:log0` | yes | yes | yes | no | no | yes | `sudden_nan` |" in page


def test_what_was_said_of_programs_stays_where_none_were_run() -> None:
    before = f"old\n\n{PROGRAMS_HEADING}\n\nkept\n"
    assert render(outcomes(), 0, None, before).endswith(f"{PROGRAMS_HEADING}\n\nkept\n")


def test_a_folder_without_labels_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"no {LABELS} in {tmp_path}" in capsys.readouterr().err


def test_a_folder_of_logs_is_scored_and_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "deepobs/cifar10_3c3d_momentum_lr0.158_s42"
    (tmp_path / "traces/deepobs").mkdir(parents=True)
    shutil.copy(FIXTURES / (name + SUFFIX), tmp_path / "traces" / (name + SUFFIX))
    heading, *lines = (FIXTURES / LABELS).read_text().splitlines()
    line = next(line for line in lines if line.startswith(name + ","))
    (tmp_path / "traces" / LABELS).write_text(f"{heading}\n{line}\n")
    page = tmp_path / "page.md"
    assert main([str(tmp_path), "--page", str(page)]) == 0
    assert "gradual_divergence_to_nan        1     1     1     1" in capsys.readouterr().out
    assert "| `gradual_divergence_to_nan` | 1 of 1 |" in page.read_text()


def test_classes_are_told_the_largest_first() -> None:
    labels = [Label("a", "sudden_nan"), Label("b", "nonfinite_loss"), Label("c", "nonfinite_loss")]
    assert list(by_class(outcome(label, []) for label in labels)) == ["nonfinite_loss", "sudden_nan"]
