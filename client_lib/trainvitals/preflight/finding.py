"""Finding: one thing that a preflight found, where, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

Severity = Literal["error", "warning"]

MAX_SHOWN_SAMPLES = 8

# What a preflight looks for, in the words of its documentation; "error" where the training breaks or cannot
# learn what it should, "warning" where it is likely to. A finding may be milder than its code's worst.
CODES = {
    "data_not_finite": "NaN or Infinity in inputs, labels or sample weights",
    "input_not_normalised": "large raw numbers reach the first weights",
    "input_beyond_float16": "inputs that float16 cannot hold",
    "labels_of_other_count": "labels or weights of another number of samples than the inputs",
    "labels_outside_domain": "labels that the loss does not take",
    "labels_one_hot_for_sparse": "one-hot labels where the loss takes class ids",
    "labels_sparse_for_one_hot": "class ids where the loss takes one-hot labels",
    "labels_not_one_class": "labels of several classes in a loss over exactly one",
    "activation_before_logits_loss": "a softmax or sigmoid before a loss with from_logits=True",
    "logits_without_activation": "raw logits before a loss with from_logits=False",
    "outputs_outside_domain": "outputs that the loss is not defined for",
    "single_unit_softmax": "a softmax over one unit, which is always 1",
    "float16_mask": "a mask that overflows float16 when it is added",
    "float16_epsilon": "an epsilon that is 0 in float16",
    "float16_optimizer_epsilon": "an optimizer's epsilon that is 0 beside its float16 weights",
    "no_loss_scale": "float16 computation without loss scaling",
    "loss_scale_not_applied": "a train_step that unscales gradients of a loss it never scaled",
    "unbounded_log": "a logarithm of what can reach 0",
    "unbounded_sqrt": "a root of what can reach 0, where its slope is infinite",
    "unbounded_power": "a power with a fractional or negative exponent of what can reach 0",
    "unbounded_division": "a division by what can reach 0",
    "unbounded_exp": "an exponential that can overflow",
    "loss_not_finite": "the first loss is not finite",
    "gradient_not_finite": "the first gradients are not finite",
    "gradient_missing": "weights that the loss does not depend on",
    "gradient_zero": "layers whose first gradient is exactly 0",
    "gradient_vanishing": "layers whose first gradient is next to nothing beside that of others",
    "gradient_exploding": "layers whose first gradient is huge beside their weights",
    "inference_not_finite": "outputs that are not finite outside of training",
    "step_raises": "the step raises an exception",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault, with its place: those of `layer`, `file` and `line`, `part` of the batch that are known."""

    code: str
    severity: Severity
    what: str  # one sentence
    advice: str
    snippet: str = ""  # code for Keras, where that says it better
    layer: str = ""
    file: str = ""
    line: int = 0
    source: str = ""  # the text of that line
    part: str = ""  # of the batch: "x", "x['age']", "y"
    feature: int | None = None  # index on the last axis
    samples: tuple[int, ...] = ()  # the first places in the batch, from 0

    @property
    def where(self) -> str:
        """Return the place in words; empty where there is none to tell."""
        places = [f"layer {self.layer}"] if self.layer else []
        if self.file:
            places.append(f"{PurePath(self.file).name}:{self.line}")
        if self.part:
            places.append(self.part)
        if self.feature is not None:
            places.append(f"feature {self.feature}")
        if self.samples:
            shown = ", ".join(map(str, self.samples[:MAX_SHOWN_SAMPLES]))
            more = ", ..." if len(self.samples) > MAX_SHOWN_SAMPLES else ""
            places.append(f"sample{'s' if len(self.samples) > 1 else ''} {shown}{more}")
        return ", ".join(places)

    def __str__(self) -> str:
        lines = [f"{self.severity} {self.code}: {self.what}"]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.source:
            lines.append(f"  line:  {self.source}")
        lines.append(f"  do:    {self.advice}")
        lines += [f"           {line}" for line in self.snippet.splitlines()]
        return "\n".join(lines)
