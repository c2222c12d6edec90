"""A resumed session begins with what its predecessor knew at that step, and knows nothing that came after."""

from __future__ import annotations

import numpy as np
import pytest

from stuck import alternating, bad_metric, never_learning, no_gradient, slow
from traces import batch_of, collapse, exploding, gradual, learning, spike, sudden
from trainvitals.wire import Hello
from trainvitals_server.batch import Batch
from trainvitals_server.fold import RunFold
from trainvitals_server.incident import Incident


def test_a_run_resumed_while_it_is_young_knows_what_it_had_learned() -> None:
    fold = RunFold("run")
    fold.hello(Hello(run_id="run", session_id="a"))
    fold.rows(0, "a", batch_of({"loss": learning(300)}))
    fold.hello(Hello(run_id="run", session_id="b", session_ordinal=1, resume_step=200))
    later = 5.0 * 1.5 ** np.arange(12)
    (incident,) = fold.rows(0, "b", batch_of({"loss": later}, steps=range(200, 212)))
    assert incident.severity == "critical"


def test_what_came_after_the_checkpoint_is_not_known_to_a_resumed_session() -> None:
    fold = RunFold("run")
    fold.hello(Hello(run_id="run", session_id="a"))
    fold.rows(0, "a", sudden())  # not finite from step 200 on
    fold.hello(Hello(run_id="run", session_id="b", session_ordinal=1, resume_step=190))
    (incident,) = fold.rows(0, "b", batch_of({"loss": [1.0, np.nan]}, steps=[190, 191]))
    assert (incident.session_id, incident.onset_step) == ("b", 191)


def test_a_late_session_of_the_same_run_notes_what_it_had_to_say_and_disturbs_nobody() -> None:
    fold = RunFold("run")
    fold.hello(Hello(run_id="run", session_id="a"))
    (live,) = fold.rows(0, "a", sudden())
    fold.hello(Hello(run_id="run", session_id="old", late=True))
    (late,) = fold.rows(0, "old", sudden())
    assert (live.late, late.late) == (False, True)
    assert live.id != late.id
    assert {item.id for item in fold.incidents()} == {live.id, late.id}


def resumed(batch: Batch, rows: int) -> list[Incident]:
    """Return what a session says that goes on with the rows from `rows` on, saved at that step."""
    fold = RunFold("run")
    fold.hello(Hello(run_id="run", session_id="a"))
    fold.rows(0, "a", batch)
    fold.hello(Hello(run_id="run", session_id="b", session_ordinal=1, resume_step=rows))
    fold.rows(0, "b", batch.slice(rows, len(batch)))
    return [incident for incident in fold.incidents() if incident.session_id == "b"]


@pytest.mark.parametrize(
    ("batch", "rows", "kind"),
    [
        (never_learning(), 400, "plateau"),
        (alternating(), 250, "oscillation"),
        (no_gradient(), 100, "silent_constant"),
        (slow(), 700, "slow_steps"),
        (bad_metric(), 150, "metric_nonfinite"),
        (sudden(), 215, "sudden_nan"),
        (collapse(), 100, "loss_scale_collapse"),
        (exploding(), 350, "exploding_gradient"),
        (gradual(), 600, "gradual_divergence"),
    ],
)
def test_a_session_that_resumes_in_the_middle_of_trouble_is_told_of_it(
    batch: Batch, rows: int, kind: str
) -> None:
    assert kind in [incident.kind for incident in resumed(batch, rows)]


def test_what_was_over_before_the_checkpoint_is_not_told_again() -> None:
    assert resumed(spike(), 300) == []
    assert resumed(batch_of({"loss": learning(600)}), 300) == []
