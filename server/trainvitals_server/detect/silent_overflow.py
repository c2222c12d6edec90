"""Half precision that overflows without a trace: infinity divided away, and with it what was learned.

The loss climbs back to where it began while the gradients stay finite and *shrink*: a learning rate that is
too high makes them grow. Runs in float16 only. Needs `loss` and `grad_norm`; with `layer_grad_norm` it
names the layer whose gradient lost most, with `layer_activation_absmax` how large outputs were meanwhile.
"""

from __future__ import annotations

from statistics import median

import msgspec
import numpy as np

from trainvitals.wire import FloatArray
from trainvitals_server.batch import Batch
from trainvitals_server.detect.layer_rows import column_medians
from trainvitals_server.detect.output_rows import output_rows
from trainvitals_server.detect.outputs import FLOAT16_END, Facts
from trainvitals_server.finding import Evidence, Finding

BLOCK = 8
HEAD = 5
LEAVE_HEIGHT = 0.2  # of the way back to the start
LOST_HEIGHT = 0.7
SHRUNK = 0.5  # of the gradient norm before
MIN_CALM = 4  # blocks that show what was usual
MIN_FALL = 4.0  # times the noise that the loss must have come down before


class SilentOverflowFold(msgspec.Struct):
    """Folds loss and gradient norm of a half-precision run."""

    is_half: bool = False
    head: list[float] = []
    steps: list[int] = []
    losses: list[float] = []
    norms: list[float] = []
    layer_names: list[str] = []
    layers: list[list[float]] = []
    best: float = float("inf")
    last_middle: float = float("nan")
    calm_norms: list[float] = []
    calm_layers: list[float] = []
    noise: float = 0.0
    out_blocks: int = 0
    onset_step: int = 0
    is_told: bool = False
    largest_output: float = -1.0  # of the float16 layers since the loss left its level; -1: not measured
    output_layer: str = ""

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the rows of `batch` say."""
        loss, norm = batch.columns.get("loss"), batch.columns.get("grad_norm")
        if not self.is_half or self.is_told or loss is None or norm is None:
            return []
        findings: list[Finding] = []
        finite = np.isfinite(loss.values) & np.isfinite(norm.values)
        rows = np.flatnonzero(loss.present & norm.present & finite)
        layers = _layer_rows(batch)
        names = [layer.name for layer in batch.layers] if layers is not None else []
        if names != self.layer_names:
            self.layer_names, self.layers, self.calm_layers = names, [], []
        outputs = {row.step: row.sizes for row in output_rows(batch)}
        columns = zip(batch.steps[rows].tolist(), loss.values[rows].tolist(), norm.values[rows].tolist(),
                      rows.tolist(), strict=True)  # fmt: skip
        for step, value, size, row in columns:
            self._take(step, value, size, [] if layers is None else layers[row].tolist())
            if step in outputs:
                self._note_outputs(batch, outputs[step])
            if len(self.steps) == BLOCK:
                findings += self._close_block()
            if self.is_told:
                break
        return findings

    def _take(self, step: int, loss: float, norm: float, layers: list[float]) -> None:
        if len(self.head) < HEAD:
            self.head.append(loss)
        self.steps.append(step)
        self.losses.append(loss)
        self.norms.append(norm)
        if layers:
            self.layers.append(layers)

    def _note_outputs(self, batch: Batch, sizes: FloatArray) -> None:
        for layer, size in zip(batch.layers, sizes.tolist(), strict=True):
            if layer.compute_dtype == "float16" and size > self.largest_output:
                self.largest_output, self.output_layer = min(size, FLOAT16_END), layer.name

    def _close_block(self) -> list[Finding]:
        middle, norm = median(self.losses), median(self.norms)
        findings: list[Finding] = []
        if self._height(middle) < LEAVE_HEIGHT or len(self.calm_norms) < MIN_CALM:
            self._keep_calm(middle, norm)
        else:
            self._note_leaving()
            if self._is_lost(middle, norm):
                self.is_told = True
                findings = [self._finding(middle, norm)]
        self.last_middle = middle
        self.steps, self.losses, self.norms, self.layers = [], [], [], []
        return findings

    def _keep_calm(self, middle: float, norm: float) -> None:
        self.best = min(self.best, middle)
        self.noise = median(abs(loss - middle) for loss in self.losses)
        self.calm_norms = [*self.calm_norms[1 - MIN_CALM :], norm]
        self.out_blocks = 0
        self.largest_output = -1.0
        if self.layers:
            self.calm_layers = self._layer_medians()

    def _note_leaving(self) -> None:
        if not self.out_blocks:
            out = (step for step, loss in zip(self.steps, self.losses, strict=True)
                   if self._height(loss) >= LEAVE_HEIGHT)  # fmt: skip
            self.onset_step = next(out, self.steps[0])
        self.out_blocks += 1

    def _is_lost(self, middle: float, norm: float) -> bool:
        has_learned = median(self.head) - self.best >= MIN_FALL * self.noise
        is_rising = self.out_blocks >= 2 and middle >= self.last_middle
        shrank = norm <= SHRUNK * median(self.calm_norms)
        return has_learned and is_rising and shrank and self._height(middle) >= LOST_HEIGHT

    def _height(self, loss: float) -> float:
        """Return how much of its descent is lost; 0 where it has not come down."""
        descent = median(self.head) - self.best
        return (loss - self.best) / descent if 0 < descent < float("inf") else 0.0

    def _layer_medians(self) -> list[float]:
        medians: list[float] = column_medians(np.array(self.layers)).tolist()
        return medians

    def _finding(self, middle: float, norm: float) -> Finding:
        before, layer = median(self.calm_norms), self._weakest_layer()
        climbed = (
            f"the loss climbed from {self.best:.4g} back to {middle:.4g}; "
            f"the run began at {median(self.head):.4g}"
        )
        shrank = f"the gradient norm shrank meanwhile, from {before:.3g} to {norm:.3g}, and is finite"
        measured: Facts = {}
        if self.largest_output >= 0:
            measured = {"largest_output": self.largest_output, "output_layer": self.output_layer}
        return Finding(
            kind="activation_overflow", severity="warning", onset_step=self.onset_step,
            detected_step=self.steps[-1], layer=layer,
            evidence=(Evidence(text=climbed, series="loss", step=self.steps[-1], value=middle),
                      Evidence(text=shrank, series="grad_norm", step=self.steps[-1], value=norm)),
            facts={"best": self.best, "loss": middle, "start": median(self.head), "norm_before": before,
                   "norm": norm, **measured},
        )  # fmt: skip

    def _weakest_layer(self) -> str | None:
        if not self.layers or len(self.calm_layers) != len(self.layer_names):
            return None
        pairs = zip(self._layer_medians(), self.calm_layers, strict=True)
        kept = [now / before if before > 0 else float("inf") for now, before in pairs]
        return self.layer_names[min(range(len(kept)), key=kept.__getitem__)]


def _layer_rows(batch: Batch) -> FloatArray | None:
    series = batch.layer_columns.get("layer_grad_norm")
    if series is None or not batch.layers:
        return None
    usable = series.present & np.isfinite(series.values)
    return np.where(usable, series.values, np.nan)
