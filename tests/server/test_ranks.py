"""Several ranks of one run: one story, told the same in whatever order their rows arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import FAILING, batch_of, gradient_first, healthy_half, learning, sudden
from trainvitals.wire import Hello
from trainvitals_server.batch import Batch
from trainvitals_server.detect.rates import RateSummary
from trainvitals_server.finding import Finding
from trainvitals_server.fold import RunFold
from trainvitals_server.incident import Incident
from trainvitals_server.ranks import Entry, follow, merge

Arrival = tuple[int, Batch]


def hello(rank: int, **more: object) -> Hello:
    return Hello(run_id="run", session_id=f"s{rank}", rank=rank, **more)  # type: ignore[arg-type]


def fold_of(arrivals: Iterable[Arrival], stored: dict[str, Incident] | None = None) -> RunFold:
    """Fold what arrives, rank by rank, and keep what it says of each incident in `stored`."""
    fold = RunFold("run")
    for rank, batch in arrivals:
        fold.hello(hello(rank))
        for incident in fold.rows(rank, f"s{rank}", batch):
            if stored is not None:
                known = stored.get(incident.id)
                assert known is None or incident.revision > known.revision
                stored[incident.id] = incident
    return fold


def pieces(rank: int, batch: Batch, rows: int = 40) -> list[Arrival]:
    return [(rank, batch.slice(start, start + rows)) for start in range(0, len(batch), rows)]


def interleaved(streams: Sequence[list[Arrival]], order: Sequence[int]) -> list[Arrival]:
    """Take from the streams in this order, each in its own; then what is left."""
    left = [list(stream) for stream in streams]
    taken = [left[number].pop(0) for number in order if left[number]]
    return taken + [arrival for stream in left for arrival in stream]


def told(incidents: Iterable[Incident]) -> list[bytes]:
    return [msgspec.msgpack.encode(msgspec.structs.replace(item, revision=0)) for item in incidents]


def nan_at(step: int, seed: int) -> Batch:
    loss = learning(400, seed=seed)
    loss[step:] = np.nan
    return batch_of({"loss": loss})


@pytest.mark.parametrize("kind", FAILING)
@settings(max_examples=10)
@given(data=st.data())
def test_the_order_in_which_ranks_arrive_changes_nothing(kind: str, data: st.DataObject) -> None:
    streams = [pieces(rank, FAILING[kind](rank)) for rank in (0, 1)]
    order = data.draw(st.lists(st.integers(0, 1), max_size=40))
    first = data.draw(st.integers(0, 1))
    stored: dict[str, Incident] = {}
    fold = fold_of(interleaved(streams, [first, 1 - first, *order]), stored)
    plain = fold_of(interleaved(streams, [0, 1] * 40))
    assert plain.incidents()
    assert told(fold.incidents()) == told(plain.incidents())
    kept = [item for item in stored.values() if item.findings]
    assert sorted(told(kept)) == sorted(told(fold.incidents()))


def test_one_nan_on_all_ranks_is_one_incident_that_says_which_was_first() -> None:
    streams = [pieces(rank, nan_at(step, rank)) for rank, step in enumerate((203, 200, 201))]
    (incident,) = fold_of(interleaved(streams, [0, 1, 2] * 10)).incidents()
    assert (incident.kind, incident.rank, incident.onset_step) == ("sudden_nan", 1, 200)
    assert incident.why[0] == (
        "Rank 1 went bad first, at step 200; then rank 2 at step 201, rank 0 at step 203."
    )


def test_a_rank_that_was_first_but_arrives_last_changes_the_same_incident() -> None:
    stored: dict[str, Incident] = {}
    fold_of([(0, nan_at(203, 0)), (1, nan_at(200, 1))], stored)
    (incident,) = stored.values()
    assert (incident.rank, incident.onset_step, incident.revision) == (1, 200, 2)


def test_a_rank_that_was_alone_at_first_goes_on_with_its_incidents() -> None:
    fold, stored = RunFold("run"), []
    fold.hello(hello(0))
    stored += fold.rows(0, "s0", sudden())
    fold.hello(hello(1))
    assert told(fold.incidents()) == told(stored)
    stored += fold.rows(0, "s0", batch_of({"loss": learning(20)}, steps=range(230, 250)))
    assert [item.revision for item in stored] == [3, 4]
    assert len({item.id for item in stored}) == 1


def test_what_two_ranks_note_alike_is_noted_once() -> None:
    fold = fold_of([(0, healthy_half(0)), (1, healthy_half(1))])
    assert [(item.kind, item.severity) for item in fold.incidents()] == [("transient_overflow", "info")]


def test_an_incident_is_over_when_it_is_on_every_rank() -> None:
    def bump(rows: int) -> Batch:
        loss = learning(600)
        loss[300:rows] += 40.0
        return batch_of({"loss": loss})

    one_well = fold_of([(0, bump(320)), (1, bump(600).slice(0, 330))])
    assert [item.state for item in one_well.incidents()] == ["open"]
    all_well = fold_of([(0, bump(320)), (1, bump(324))])
    assert [item.state for item in all_well.incidents()] == ["withdrawn"]


def test_what_turns_out_to_be_a_part_of_another_rank_s_story_is_withdrawn() -> None:
    late = Finding(kind="fast_divergence", severity="critical", onset_step=300, detected_step=310)
    early = Finding(kind="gradual_divergence", severity="warning", onset_step=300, detected_step=305)
    entries = [Entry(late, 0, "s0", RateSummary()), Entry(early, 1, "s1", RateSummary())]
    alone = {story.incident.id: story.incident for story in merge("run", "life 0", entries[:1])}
    both = {story.incident.id: story.incident for story in merge("run", "life 0", entries)}
    _, news = follow(alone, both)
    assert [(item.kind, item.state, item.severity) for item in news] == [
        ("gradual_divergence", "open", "critical"),
        ("fast_divergence", "withdrawn", "critical"),
    ]


def test_a_restart_between_two_ranks_changes_nothing() -> None:
    fold = fold_of([(0, nan_at(203, 0))])
    fold = RunFold.load(fold.dump())
    fold.hello(hello(1))
    fold.rows(1, "s1", nan_at(200, 1))
    assert told(fold.incidents()) == told(fold_of([(0, nan_at(203, 0)), (1, nan_at(200, 1))]).incidents())


def test_lives_of_a_run_are_stories_of_their_own() -> None:
    fold = fold_of([(0, sudden())])
    fold.hello(Hello(run_id="run", session_id="again", session_ordinal=1))
    fold.rows(0, "again", gradient_first())
    assert [item.session_id for item in fold.incidents()] == ["again", "s0"]
    assert len({item.id for item in fold.incidents()}) == 2


def test_a_late_rank_folds_apart() -> None:
    fold = fold_of([(0, nan_at(203, 0))])
    fold.hello(hello(1, late=True))
    fold.rows(1, "s1", nan_at(200, 1))
    assert [(item.rank, item.late) for item in fold.incidents()] == [(1, True), (0, False)]
