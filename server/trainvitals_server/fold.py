"""RunFold: everything the detectors know about one run, as one value that serialises.

Pure: no clock, no I/O. Each session of each rank folds apart; a resumed session begins with what its
predecessor knew at that step. Folding the same frames again, in any batches, gives the same incidents.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from trainvitals.wire import Bye, Environment, Event, Hello, Layer, Layout
from trainvitals_server.batch import Batch
from trainvitals_server.book import Book, precedence
from trainvitals_server.case import Context
from trainvitals_server.detect.blocks import LOSS_BLOCK, Blocks
from trainvitals_server.detect.constant import ConstantFold
from trainvitals_server.detect.gradient import GradientFold
from trainvitals_server.detect.kept_out import KeptOutFold
from trainvitals_server.detect.layers import LayerFold
from trainvitals_server.detect.loss import LossFold
from trainvitals_server.detect.lost import Lost
from trainvitals_server.detect.low_scale import LowScaleFold
from trainvitals_server.detect.metric import MetricFold
from trainvitals_server.detect.misuse import MisuseFold
from trainvitals_server.detect.origin import Origin
from trainvitals_server.detect.oscillation import OscillationFold
from trainvitals_server.detect.overfitting import OverfittingFold
from trainvitals_server.detect.overflow import OverflowFold
from trainvitals_server.detect.plateau import PlateauFold
from trainvitals_server.detect.rates import RateFold, RateSummary
from trainvitals_server.detect.runaway import RunawayFold
from trainvitals_server.detect.silent_overflow import SilentOverflowFold
from trainvitals_server.detect.speed import SpeedFold
from trainvitals_server.detect.validation import ValidationFold
from trainvitals_server.finding import Finding
from trainvitals_server.first_bad import explained, kept
from trainvitals_server.incident import Incident
from trainvitals_server.plainly import tell_in_any_case
from trainvitals_server.ranks import MAX_ENTRIES, Entry, follow, merge, told_of_ranks

SNAPSHOT_ROWS = 512  # a resumed run finds what was known at most so many rows before its checkpoint,
FIRST_SNAPSHOTS = (32, 64, 128, 256)  # a young one at most half of its rows
MAX_SNAPSHOTS = 16  # beyond it every second one goes
COMPRESSION = 3  # of zlib: a fifth of a millisecond each


class Detectors(msgspec.Struct):
    """The detectors of one session; each is a fold of its own."""

    loss: LossFold = msgspec.field(default_factory=LossFold)
    lost: Lost = msgspec.field(default_factory=Lost)
    gradient: GradientFold = msgspec.field(default_factory=GradientFold)
    overflow: OverflowFold = msgspec.field(default_factory=OverflowFold)
    validation: ValidationFold = msgspec.field(default_factory=ValidationFold)
    rates: RateFold = msgspec.field(default_factory=RateFold)
    origin: Origin = msgspec.field(default_factory=Origin)
    layers: LayerFold = msgspec.field(default_factory=LayerFold)
    misuse: MisuseFold = msgspec.field(default_factory=MisuseFold)
    silent: SilentOverflowFold = msgspec.field(default_factory=SilentOverflowFold)
    blocks: Blocks = msgspec.field(default_factory=lambda: Blocks(LOSS_BLOCK))
    plateau: PlateauFold = msgspec.field(default_factory=PlateauFold)
    oscillation: OscillationFold = msgspec.field(default_factory=OscillationFold)
    constant: ConstantFold = msgspec.field(default_factory=ConstantFold)
    overfitting: OverfittingFold = msgspec.field(default_factory=OverfittingFold)
    metric: MetricFold = msgspec.field(default_factory=MetricFold)
    runaway: RunawayFold = msgspec.field(default_factory=RunawayFold)
    low_scale: LowScaleFold = msgspec.field(default_factory=LowScaleFold)
    speed: SpeedFold = msgspec.field(default_factory=SpeedFold)
    kept_out: KeptOutFold = msgspec.field(default_factory=KeptOutFold)

    def know(self, environment: Environment) -> None:
        """Take what the environment says and rows do not."""
        policy = environment.dtype_policy
        self.overflow.loss_scaling |= environment.loss_scaling
        if environment.optimizer:
            self.overflow.has_scaler = environment.loss_scaling
            self.kept_out.is_on = not environment.loss_scaling
        self.silent.is_half |= "float16" in policy and "bfloat16" not in policy
        self.runaway.know_loss(environment.loss)

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the rows of `batch` say, in the order in which they give it away."""
        self.origin.feed(batch)
        blocks = self.blocks.cut(batch, "loss")
        found = self.loss.feed(batch)
        lost = self.lost.spans(found)
        found += [*self.gradient.feed(batch), *self.overflow.feed(batch, lost)]
        found += self.validation.feed(batch)
        found += [*self.layers.feed(batch), *self.misuse.feed(batch), *self.silent.feed(batch)]
        found += [*self.constant.feed(batch), *self.runaway.feed(batch), *self.low_scale.feed(batch, blocks)]
        found += [*self.metric.feed(batch), *self.plateau.feed(batch, blocks)]
        found += [*self.oscillation.feed(blocks), *self.overfitting.feed(batch), *self.speed.feed(batch)]
        return sorted(self.kept_out.feed(batch, found), key=precedence)

    def without_begun_blocks(self) -> Detectors:
        """Return the same without the layers' rows that fill no block yet: most of a state in few rows."""
        rows = replace(self.layers.rows, steps=[], cells=b"")
        return replace(self, layers=replace(self.layers, rows=rows))

    def validated(self, step: int, data: Mapping[str, object]) -> list[Finding]:
        """Return what a validation event says."""
        return [*self.validation.event(step, data), *self.overfitting.event(step, data)]


class Snapshot(msgspec.Struct):
    """What was known once the row `step` was folded; `state` is compressed."""

    step: int
    rows: int
    state: bytes


class Session(msgspec.Struct):
    """The fold of one session of one rank."""

    book: Book
    ordinal: int = 0
    rows: int = 0
    last_step: int | None = None
    detectors: Detectors = msgspec.field(default_factory=Detectors)
    snapshots: list[Snapshot] = []
    layers: list[Layer] = []
    environment: Environment | None = None
    checkpoints: list[int] = []
    stride: int = SNAPSHOT_ROWS
    entries: list[Entry] = []
    reports: list[dict[str, Any]] = []  # of replayed steps
    is_by_step: bool = True

    def feed(self, batch: Batch) -> list[Incident]:
        """Fold rows, cut where a snapshot is due."""
        changed: dict[str, Incident] = {}
        start = 0
        while start < len(batch):
            stop = min(len(batch), start + self._next_snapshot() - self.rows)
            piece = batch.slice(start, stop)
            for incident in self._judge(piece):
                changed[incident.id] = incident
            self.rows += stop - start
            self.last_step = int(piece.steps[-1])
            if self.rows % self.stride == 0 or self.rows in FIRST_SNAPSHOTS:
                self._snapshot()
            start = stop
        return list(changed.values())

    def _judge(self, piece: Batch) -> list[Incident]:
        """Fold one piece; each finding is told with the learning rates up to its own row, not later ones."""
        rates, told, changed = self.detectors.rates, 0, []
        for finding in self.detectors.feed(piece):
            row = int(np.searchsorted(piece.steps, finding.detected_step, side="right"))
            rates.feed(piece.slice(told, row))
            told = max(told, row)
            changed += self.enter([finding])
        rates.feed(piece.slice(told, len(piece)))
        return changed

    def enter(self, findings: Iterable[Finding]) -> list[Incident]:
        """Enter findings into the book and put each changed incident into words."""
        changed: dict[str, Incident] = {}
        for finding in findings:
            self._log(finding)
            incident = self.book.add(finding)
            if incident is not None:
                changed[incident.id] = self._tell(explained(incident, self.reports))
        return list(changed.values())

    def autopsied(self, event: Event) -> list[Incident]:
        """Take the report of a replayed step; return the incidents that it explains."""
        self.reports = kept(self.reports, event.step, event.data)
        known = self.book.incidents
        now = [(incident, explained(incident, self.reports)) for incident in known]
        return [self._tell(replace(new, revision=old.revision + 1)) for old, new in now if new is not old]

    def _tell(self, incident: Incident) -> Incident:
        told = tell_in_any_case(incident, self.context(self.detectors.rates.summary()))
        self.book.put(told)
        return told

    def _log(self, finding: Finding) -> None:
        """Keep what other ranks' findings may have to be put in order with."""
        is_full = len(self.entries) >= MAX_ENTRIES
        if not is_full or (finding.severity == "critical" and len(self.entries) < 2 * MAX_ENTRIES):
            entry = Entry(finding, self.book.rank, self.book.session_id, self.detectors.rates.summary())
            self.entries.append(entry)

    def sound_before(self, step: int) -> int:
        """Return the onset of what was wrong at `step` and still is; `step` itself where nothing was.

        Who resumes in the middle of trouble begins with what was known before it, and is told of it again.
        """
        onsets = [item.onset_step for item in self.book.incidents if item.state == "open"]
        return min([onset for onset in onsets if onset < step], default=step)

    def fork_at(self, step: int) -> Detectors | None:
        """Return what was known at the last snapshot before `step`."""
        for snapshot in reversed(self.snapshots):
            if snapshot.step < step:
                return msgspec.msgpack.decode(zlib.decompress(snapshot.state), type=Detectors)
        return None

    def context(self, rates: RateSummary) -> Context:
        """Return what is known about the run beside its rows."""
        return Context(
            environment=self.environment or Environment(),
            layers=tuple(self.layers),
            checkpoints=tuple(self.checkpoints),
            rates=rates,
            origin=self.detectors.origin,
            is_by_step=self.is_by_step,
        )

    def _next_snapshot(self) -> int:
        regular = SNAPSHOT_ROWS * (self.rows // SNAPSHOT_ROWS + 1)
        return min([rows for rows in FIRST_SNAPSHOTS if rows > self.rows] + [regular])

    def _snapshot(self) -> None:
        assert self.last_step is not None
        state = msgspec.msgpack.encode(self.detectors.without_begun_blocks())
        self.snapshots.append(Snapshot(self.last_step, self.rows, zlib.compress(state, COMPRESSION)))
        if len(self.snapshots) > MAX_SNAPSHOTS:
            self.stride *= 2
            self.snapshots = [item for item in self.snapshots if item.rows % self.stride == 0]


class RunFold(msgspec.Struct):
    """Folds all streams of a run into its incidents."""

    run_id: str
    sessions: dict[str, Session] = {}
    told: dict[str, dict[str, Incident]] = {}  # by group of ranks: what was said of each incident last

    def hello(self, hello: Hello) -> None:
        """Begin a session, or go on with it after a reconnect."""
        key = _key(hello.rank, hello.session_id)
        if key in self.sessions:
            return
        group = "" if hello.late else self._group(hello.rank, hello.session_ordinal)
        book = Book(self.run_id, hello.session_id, hello.rank, hello.late, group)
        session = Session(book, hello.session_ordinal, environment=hello.environment)
        if hello.resume_step is not None:
            session.detectors = self._known_at(hello) or session.detectors
        session.detectors.know(hello.environment)
        for peer in self._ranks(group):  # what the first rank has said while it was alone
            self.told.setdefault(group, {item.id: item for item in peer.book.incidents})
        self.sessions[key] = session

    def layout(self, rank: int, session_id: str, layout: Layout) -> None:
        """Take the layers, and the environment once the model is built."""
        session = self._session(rank, session_id)
        session.layers = list(layout.layers)
        if layout.environment is not None:
            session.environment = layout.environment
            session.detectors.know(layout.environment)

    def rows(self, rank: int, session_id: str, batch: Batch) -> list[Incident]:
        """Fold rows of one session; return the incidents that are new or changed."""
        session = self._session(rank, session_id)
        return self._of_all_ranks(session, session.feed(batch))

    def event(self, rank: int, session_id: str, event: Event) -> list[Incident]:
        """Fold an event of one session; return the incidents that are new or changed."""
        session = self._session(rank, session_id)
        if event.kind == "checkpoint":
            session.checkpoints = [*session.checkpoints[-63:], event.step]
        if event.kind == "autopsy":
            return self._of_all_ranks(session, session.autopsied(event), is_news=True)
        if event.kind != "validation":
            return []
        found = session.detectors.validated(event.step, event.data)
        return self._of_all_ranks(session, session.enter(found))

    def bye(self, rank: int, session_id: str, bye: Bye) -> list[Incident]:
        """Note the end of a session; a finished one has nothing more to say."""
        self._session(rank, session_id)
        return []

    def incidents(self) -> list[Incident]:
        """Return all incidents of the run, in order of detection."""
        found = [
            incident
            for session in self.sessions.values()
            if session.book.group not in self.told
            for incident in session.book.incidents
        ]
        found += [item for told in self.told.values() for item in told.values() if item.findings]
        return sorted(found, key=lambda incident: (incident.detected_step, incident.rank, incident.id))

    def dump(self) -> bytes:
        """Return the whole state."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def load(cls, data: bytes) -> RunFold:
        """Return the fold that `dump` wrote."""
        return msgspec.msgpack.decode(data, type=cls)

    def _session(self, rank: int, session_id: str) -> Session:
        key = _key(rank, session_id)
        if key not in self.sessions:
            self.sessions[key] = Session(Book(self.run_id, session_id, rank))
        return self.sessions[key]

    def _group(self, rank: int, ordinal: int) -> str:
        """Return what the ranks of one life of the run share; "" for one that has this rank already."""
        group = f"life {ordinal}"
        peers = self._ranks(group)
        return "" if any(session.book.rank == rank for session in peers) else group

    def _ranks(self, group: str) -> list[Session]:
        return [session for session in self.sessions.values() if group and session.book.group == group]

    def _of_all_ranks(
        self, session: Session, changed: list[Incident], *, is_news: bool = False
    ) -> list[Incident]:
        """Return what `changed` in one rank as what changes in the incidents of all its ranks."""
        ranks = self._ranks(session.book.group)
        if len(ranks) < 2 or not (changed or is_news):
            return changed
        in_order = sorted(ranks, key=lambda rank: rank.book.rank)
        reports = [report for rank in in_order for report in rank.reports]
        by_name = {rank.book.session_id + str(rank.book.rank): rank for rank in ranks}
        now: dict[str, Incident] = {}
        for story in merge(
            self.run_id, session.book.group, (entry for rank in ranks for entry in rank.entries)
        ):
            first = story.first
            context = by_name[first.session_id + str(first.rank)].context(first.rates)
            incident = explained(story.incident, reports)
            now[incident.id] = told_of_ranks(story, tell_in_any_case(incident, context))
        told, news = follow(self.told[session.book.group], now)
        self.told[session.book.group] = told
        return news

    def _known_at(self, hello: Hello) -> Detectors | None:
        assert hello.resume_step is not None
        earlier = [
            session
            for session in self.sessions.values()
            if session.book.rank == hello.rank and session.ordinal < hello.session_ordinal
        ]
        step = hello.resume_step
        for session in sorted(earlier, key=lambda session: session.ordinal, reverse=True):
            step = session.sound_before(step)
            known = session.fork_at(step)
            if known is not None:
                return known
        return None


def scan(
    batches: Iterable[Batch], *, environment: Environment | None = None, layers: Sequence[Layer] = ()
) -> list[Incident]:
    """Return the incidents of one stream of rows, in order of detection."""
    fold = RunFold("scan")
    fold.hello(Hello(run_id="scan", session_id="scan", environment=environment or Environment()))
    if layers:
        fold.layout(0, "scan", Layout(seq=1, layout_id=1, layers=list(layers)))
    for batch in batches:
        fold.rows(0, "scan", batch)
    return fold.incidents()


def _key(rank: int, session_id: str) -> str:
    return f"{rank}/{session_id}"


__all__ = ["RunFold", "scan"]
