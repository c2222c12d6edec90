"""A resumed session begins with what its predecessor knew at that step, and knows nothing that came after."""

from __future__ import annotations

import numpy as np

from traces import batch_of, learning, sudden
from trainvitals.wire import Hello
from trainvitals_server.fold import RunFold


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
