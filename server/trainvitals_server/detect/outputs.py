"""Outputs of layers that stay dead, saturated, or grow towards the end of float16, over measured steps.

Judges `layer_dead_share`, `layer_saturated_share` and `layer_activation_absmax`, row by row, each layer by
its activation and its own past.
"""

from __future__ import annotations

from statistics import median
from typing import TypeAlias

import msgspec
import numpy as np

from trainvitals_server.batch import Batch
from trainvitals_server.detect.output_rows import OutputRow, Watched, output_rows, watched
from trainvitals_server.finding import Evidence, Finding, Kind

Facts: TypeAlias = dict[str, float | int | str | bool | None]

FLOAT16_END = 65504.0
NEAR_END = FLOAT16_END / 8  # a few steps before the end of a growth; a mask or a large constant is
GROWN = 8.0  # times what it was at first: no such growth
FAR_AGAIN = FLOAT16_END / 32
NEAR_ROWS = 3  # measured in a row
FIRST_ROWS = 4  # whose median is what a layer began with

ONE_SIDED = frozenset({"relu", "relu6", "gelu", "silu", "swish", "mish", "hard_silu", "hard_swish"})
DEAD = 0.95  # of the units; a wide layer may do with fewer, and with small batches many are silent at times
ALIVE = 0.8
SATURATED_ALONE = 0.9  # of the outputs
UNSATURATED = 0.7
LASTING = 8  # measured rows
LOSSES = 2 * LASTING
LEARNED = 1.0  # times the noise of the loss: what learns all the same is left alone


class Streak(msgspec.Struct, array_like=True):
    """Rows in a row in which something was so, since when, and what was told of it."""

    rows: int = 0
    since: int = 0
    over: int = 0
    told_since: int | None = None

    def take(self, step: int, *, is_so: bool, is_over: bool) -> None:
        """Take one more row; between the two it is neither."""
        if is_so:
            self.since = self.since if self.rows else step
            self.rows += 1
        elif is_over or not self.rows:
            self.rows = 0
        self.over = self.over + 1 if is_over else 0

    def is_news(self, rows: int) -> bool:
        """Return whether it has lasted for `rows` and was not told."""
        return self.told_since is None and self.rows >= rows

    def ended(self, rows: int) -> int | None:
        """Return since when what was told and is over for `rows` had been so; it is told no more."""
        since = self.told_since
        if since is None or self.over < rows:
            return None
        self.told_since = None
        return since


class LayerOutputs(msgspec.Struct, array_like=True):
    """What is known of one layer's outputs."""

    firsts: list[float] = []  # the sizes that it began with
    dead: Streak = msgspec.field(default_factory=Streak)
    saturated: Streak = msgspec.field(default_factory=Streak)
    near: Streak = msgspec.field(default_factory=Streak)

    def is_at_rest(self, layer: Watched) -> bool:
        """Return whether a row in which nothing stands out changes nothing: nearly all of them."""
        is_known = not layer.is_half or len(self.firsts) == FIRST_ROWS
        return is_known and not any(
            streak.rows or streak.told_since is not None for streak in (self.dead, self.saturated, self.near)
        )


class OutputFold(msgspec.Struct):
    """Folds what layers give out."""

    layers: list[Watched] = []
    known: list[LayerOutputs] = []
    first_step: int = 0
    losses: list[float] = []

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the rows of `batch` say about the outputs of single layers."""
        findings: list[Finding] = []
        for row in output_rows(batch):
            self._expect(watched(batch.layers), row.step)
            self.losses = [*self.losses[1 - LOSSES :], row.loss]
            is_loud = (row.dead >= ALIVE) | (row.saturated >= UNSATURATED) | (row.sizes >= FAR_AGAIN)
            for place, (layer, known) in enumerate(zip(self.layers, self.known, strict=True)):
                if not is_loud[place] and known.is_at_rest(layer):
                    continue
                findings += self._dead(row, place, layer, known.dead)
                findings += self._saturated(row, place, layer, known.saturated)
                if layer.is_half and not np.isnan(row.sizes[place]):
                    findings += self._near(row.step, float(row.sizes[place]), layer.name, known)
        return findings

    def _expect(self, layers: list[Watched], step: int) -> None:
        if layers != self.layers:
            self.layers, self.known = layers, [LayerOutputs() for _ in layers]
            self.first_step, self.losses = step, []

    def _dead(self, row: OutputRow, place: int, layer: Watched, streak: Streak) -> list[Finding]:
        share = float(row.dead[place])
        if layer.activation not in ONE_SIDED or np.isnan(share):
            return []
        streak.take(row.step, is_so=share >= DEAD, is_over=share < ALIVE)
        ended = streak.ended(NEAR_ROWS)
        if ended is not None:
            text = f"units of {layer.name} fire again; a share of {share:.3g} of them does not"
            return [_end("dead_units", ended, row.step, layer.name, text, "layer_dead_share", share)]
        if not streak.is_news(LASTING):
            return []
        streak.told_since = streak.since
        facts: Facts = {"dead_layers": layer.name, "dead_share": share, "dead_layer": layer.name}
        text = silent_text(layer.name, share, row.step)
        return [self._finding("dead_units", row.step, streak.since, layer, text, "layer_dead_share",
                              share, facts)]  # fmt: skip

    def _saturated(self, row: OutputRow, place: int, layer: Watched, streak: Streak) -> list[Finding]:
        share = float(row.saturated[place])
        if np.isnan(share) or place >= self._head:
            return []  # a sure answer is no trouble
        streak.take(row.step, is_so=share >= SATURATED_ALONE, is_over=share < UNSATURATED)
        ended = streak.ended(NEAR_ROWS)
        if ended is not None:
            text = f"the outputs of {layer.name} have left their limits; a share of {share:.3g} is there"
            return [_end("saturation", ended, row.step, layer.name, text, "layer_saturated_share", share)]
        if not streak.is_news(LASTING) or self._learns():
            return []
        streak.told_since = streak.since
        facts: Facts = {"saturated_share": share, "saturated_layer": layer.name}
        text = limit_text(layer.name, layer.activation, share, row.step)
        return [self._finding("saturation", row.step, streak.since, layer, text, "layer_saturated_share",
                              share, facts)]  # fmt: skip

    @property
    def _head(self) -> int:
        """The place of the last layer with a gradient: what comes from there on is the model's answer."""
        learning = [place for place, layer in enumerate(self.layers) if layer.has_gradient]
        return learning[-1] if learning else len(self.layers) - 1

    def _learns(self) -> bool:
        """Whether the loss falls over the rows in memory, or is not known in enough of them."""
        losses = [loss for loss in self.losses if not np.isnan(loss)]
        if len(losses) < LOSSES:
            return True
        before, now = median(losses[:LASTING]), median(losses[LASTING:])
        return before - now > LEARNED * median(abs(loss - now) for loss in losses[LASTING:])

    def _near(self, step: int, size: float, name: str, known: LayerOutputs) -> list[Finding]:
        if len(known.firsts) < FIRST_ROWS and np.isfinite(size):
            known.firsts = [*known.firsts, size]
        first, streak = median(known.firsts) if known.firsts else np.inf, known.near
        is_near = len(known.firsts) == FIRST_ROWS and size >= max(NEAR_END, GROWN * first)
        streak.take(step, is_so=is_near, is_over=size < FAR_AGAIN)
        ended = streak.ended(NEAR_ROWS)
        if ended is not None:
            text = f"the largest output of {name} is {size:.4g} again, far from the end of float16"
            return [_end("activation_overflow", ended, step, name, text, "layer_activation_absmax", size)]
        if not streak.is_news(NEAR_ROWS) or np.isinf(size):  # when it has happened others tell of it
            return []
        streak.told_since = streak.since
        text = f"the largest output of {name} is {size:.4g} in step {step}; it was {first:.3g} at first"
        evidence = Evidence(text=text, series="layer_activation_absmax", step=step, value=size, layer=name)
        return [Finding(
            kind="activation_overflow", severity="warning", onset_step=streak.since, detected_step=step,
            layer=name, evidence=(evidence,),
            facts={"largest_output": size, "first_output": first, "output_layer": name},
        )]  # fmt: skip

    def _finding(
        self, kind: Kind, step: int, since: int, layer: Watched, text: str, series: str, share: float,
        facts: Facts,
    ) -> Finding:  # fmt: skip
        more: Facts = {"output_step": step, "activation": layer.activation, "by_outputs": True,
                "from_the_start": since == self.first_step}  # fmt: skip
        return Finding(
            kind=kind, severity="warning", onset_step=since, detected_step=step, layer=layer.name,
            evidence=(Evidence(text=text, series=series, step=step, value=share, layer=layer.name),),
            facts={**facts, **more},
        )  # fmt: skip


def silent_text(name: str, share: float, step: int) -> str:
    """Say how many units of a layer were silent for a whole batch."""
    many = "no unit" if share == 1 else f"a share of only {1 - share:.2g} of the units"
    return f"{many} of {name} fired for any sample of step {step}"


def limit_text(name: str, activation: str, share: float, step: int) -> str:
    """Say how many outputs of a layer were at the limits of its activation."""
    many = f"a share of {share:.3g} of the outputs of {name}"
    return f"{many} was at the limits of its {activation} in step {step}"


def _end(kind: Kind, since: int, step: int, name: str, text: str, series: str, value: float) -> Finding:
    return Finding(
        kind=kind, severity="warning", phase="resolve", onset_step=since, detected_step=step, layer=name,
        evidence=(Evidence(text=text, series=series, step=step, value=value, layer=name),),
    )  # fmt: skip
