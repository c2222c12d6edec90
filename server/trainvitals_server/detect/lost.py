"""Lost: the steps in which the loss was told to diverge. Finds nothing by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from trainvitals_server.detect.overflow import Span
from trainvitals_server.finding import Finding

KINDS = frozenset({"immediate_blowup", "gradual_divergence", "fast_divergence"})


class Lost(msgspec.Struct):
    """Whether the loss diverges, and since which step that has been told."""

    since: int | None = None

    def spans(self, findings: Iterable[Finding]) -> list[Span]:
        """Return the stretches after the findings of some more rows; the last one may be open."""
        found: list[Span] = []
        for finding in findings:
            if finding.kind not in KINDS:
                continue
            if finding.phase == "withdraw" and self.since is not None:
                found.append((self.since, finding.detected_step))
                self.since = None
            elif finding.phase == "open" and finding.severity == "critical" and self.since is None:
                self.since = finding.detected_step
        return found if self.since is None else [*found, (self.since, math.inf)]
