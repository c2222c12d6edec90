"""Ranks: what all ranks of one life of a run have found, merged into one story. Pure.

Findings are ordered by the row that gave them away, then cause first, then rank: the order in which they
arrive changes nothing. One incident is told for all ranks, and which of them went bad first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from trainvitals_server.book import Book, is_end_of, precedence
from trainvitals_server.detect.rates import RateSummary
from trainvitals_server.finding import Finding
from trainvitals_server.incident import Incident

MAX_ENTRIES = 256  # of one rank; a run that limps for days must not grow without bound
MAX_TOLD_RANKS = 8


class Entry(msgspec.Struct, frozen=True):
    """One finding of one rank, and the learning rates up to its row."""

    finding: Finding
    rank: int
    session_id: str
    rates: RateSummary


class Story(msgspec.Struct):
    """One incident of all ranks, without words yet, and what it is made of."""

    incident: Incident
    entries: list[Entry]

    @property
    def first(self) -> Entry:
        """What it began with."""
        return self.entries[0]

    @property
    def rank_line(self) -> str | None:
        """Which rank went bad first; None where only one did."""
        steps: dict[int, int] = {}
        for entry in self.entries:
            steps.setdefault(entry.rank, entry.finding.detected_step)
        (first, step), *others = steps.items()
        if not others:
            return None
        told = ", ".join(f"rank {rank} at step {at}" for rank, at in others[:MAX_TOLD_RANKS])
        more = f" and {len(others) - MAX_TOLD_RANKS} more" if len(others) > MAX_TOLD_RANKS else ""
        return f"Rank {first} went bad first, at step {step}; then {told}{more}."


def merge(run_id: str, group: str, entries: Iterable[Entry]) -> list[Story]:
    """Return the incidents of all ranks, in order of detection."""
    book = Book(run_id, "", group=group)
    made: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: (*precedence(entry.finding), entry.rank)):
        if _is_end(entry.finding) and not _ends_for_all(entry, book, made):
            continue
        book.rank, book.session_id = entry.rank, entry.session_id
        incident = book.add(_with_rank(entry, book.incidents))
        if incident is not None:
            made.setdefault(incident.id, []).append(entry)
    return [Story(incident, made[incident.id]) for incident in book.incidents]


def _is_end(finding: Finding) -> bool:
    return finding.phase == "withdraw" or (finding.phase == "resolve" and finding.severity != "info")


def _ends_for_all(end: Entry, book: Book, made: dict[str, list[Entry]]) -> bool:
    """Note that a rank is well again, and return whether it was the last one that was not."""
    for incident in reversed(book.incidents):
        own = [entry for entry in made[incident.id] if entry.rank == end.rank]
        if incident.state == "open" and any(is_end_of(end.finding, entry.finding) for entry in own):
            made[incident.id].append(end)
            return not _still_bad(made[incident.id])
    return False


def _still_bad(entries: Sequence[Entry]) -> set[int]:
    bad: set[int] = set()
    for entry in entries:
        if _is_end(entry.finding):
            bad.discard(entry.rank)
        elif entry.finding.severity != "info":
            bad.add(entry.rank)
    return bad


def _with_rank(entry: Entry, known: Sequence[Incident]) -> Finding:
    finding = replace(entry.finding, facts={**entry.finding.facts, "rank": entry.rank})
    # The same thing seen by another rank is news about it, also where it is over as soon as it is told.
    is_known = any(incident.findings[0].key == finding.key for incident in known)
    is_news = is_known and finding.phase in ("open", "resolve") and not _is_end(finding)
    return replace(finding, phase="update") if is_news else finding


def told_of_ranks(story: Story, incident: Incident) -> Incident:
    """Return the incident, which is in words, with what only all ranks together tell."""
    line = story.rank_line
    return incident if line is None else replace(incident, why=[line, *incident.why])


def follow(
    before: Mapping[str, Incident], now: Mapping[str, Incident]
) -> tuple[dict[str, Incident], list[Incident]]:
    """Return the incidents with revisions that go on from those of `before`, and those that are news.

    One that an earlier finding of another rank has made a part of another is withdrawn; it stays in the
    result without findings, so that its revision is known.
    """
    after: dict[str, Incident] = {}
    news = []
    for key, incident in now.items():
        known = before.get(key)
        if known is None or _content(known) != _content(incident):
            incident = replace(incident, revision=known.revision + 1 if known else 1)
            news.append(incident)
        else:
            incident = known
        after[key] = incident
    for key, known in before.items():
        if key not in now:
            after[key] = known
            if known.findings:
                verdict = "It is part of another incident, which began earlier on another rank."
                gone = replace(
                    known, state="withdrawn", verdict=verdict, findings=[], revision=known.revision + 1
                )
                after[key] = gone
                news.append(gone)
    return after, news


def _content(incident: Incident) -> bytes:
    return msgspec.msgpack.encode(replace(incident, revision=0))
