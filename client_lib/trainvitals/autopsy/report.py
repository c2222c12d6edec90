"""Report: what an autopsy found. It is the data of an `autopsy` event, and of `replay`'s answer.

Only ranges, counts, indices and source lines: no value of the batch, but for the smallest and the largest of
a tensor. `Report.redacted` drops those, the paths and the source lines too.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

MAX_SAMPLES = 32  # indices that a report lists; `n_bad_samples` counts all
MAX_OPERANDS = 8

Found = Literal["operation", "input", "label", "sample_weight", "weight", "nothing"]


class Operand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor: an input of the operation, its output, or a part of the batch.

    `min` and `max` are those of its finite elements; None where there are none, or where they are redacted.
    """

    name: str  # of an operation's input: its place; of a part of the batch: `x`, `x['age']`, `y`
    dtype: str
    shape: tuple[int, ...]
    min: float | None = None
    max: float | None = None
    n_nan: int = 0
    n_posinf: int = 0
    n_neginf: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the replay of one step found first.

    `found` is "operation" where an operation made non-finite numbers from finite ones; "input", "label",
    "sample_weight" where the batch held them (or labels beyond their range); "weight" where the weights were
    bad before the step; "nothing" where the replay stayed finite, or went another way than the training
    (`met`): `notes` say why that may be.
    """

    step: int
    found: Found
    is_reproduced: bool  # the replay made a non-finite loss, gradient or weight again
    is_validation: bool = False  # not of the step itself, but of a validation after it
    # What the replay met that is not what the training did, as far as rows and capture tell: no cause is
    # named then. "variable": one that held NaN and was not kept from before the step.
    met: Literal["", "loss", "gradient", "weight", "variable"] = ""
    operation: str = ""  # TensorFlow's name of the kind of operation: "Log", "SqrtGrad"
    gradient_of: str = ""  # of a backward operation: the kind of the forward one that it belongs to, "Sqrt"
    is_unselected: bool = (
        False  # a `where` dropped these elements on the way forward; their gradient was kept
    )
    computed_from: tuple[str, ...] = ()  # the parts of the batch, where no weight has part in its inputs
    direction: Literal["", "forward", "backward", "update"] = ""
    layer: str = ""  # path of the layer in which it ran, "encoder/attention"; of the bad weight: its path
    file: str = ""  # the user's own line that made it, not one of Keras or TensorFlow
    line: int = 0
    function: str = ""
    code: str = ""
    inputs: tuple[Operand, ...] = ()  # of the operation; of the batch where that is what was bad
    output: Operand | None = None
    n_bad: int = 0  # elements of the output (or of the part of the batch) that are not finite or out of range
    feature: int | None = None  # the only last-axis index of a bad input, where there is one
    samples: tuple[int, ...] = ()  # places in the batch, from 0, that suffice to make it happen
    n_bad_samples: int = 0
    batch_size: int = 0
    weights_bad_since: int | None = None  # a step, where the weights were bad before this one
    # "mostly_before_step": but for those whose gradient was finite, which the update had changed already
    weights_from: Literal["before_step", "mostly_before_step", "snapshot", "after_step", "none"] = (
        "before_step"
    )
    bundle: str = ""  # where the bundle lies on the training machine
    took_s: float = 0.0
    notes: tuple[str, ...] = ()

    def redacted(self) -> Report:
        """Return the report without ranges, paths and source lines."""
        hidden = tuple(replace(operand, min=None, max=None) for operand in self.inputs)
        output = None if self.output is None else replace(self.output, min=None, max=None)
        return replace(
            self, inputs=hidden, output=output, file="", line=0, function="", code="", bundle="", notes=()
        )

    def to_data(self) -> dict[str, Any]:
        """Return the data of an `autopsy` event."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data
