"""Column names: which series a column of somebody's log is, under the names that trainers write."""

from __future__ import annotations

import re

STEP_NAMES = (
    "step", "global_step", "iteration", "train/global_step", "trainer/global_step", "iter", "iterations",
    "steps", "_step",
)  # fmt: skip
EPOCH = "epoch"
NAMES = {
    "loss": ("loss", "batch_loss", "loss/train", "lm_loss", "loss_step", "epoch_loss", "loss_epoch"),
    "grad_norm": ("grad_norm", "gradient_norm", "global_grad_norm", "global_gradient_norm"),
    "grad_nonfinite": ("grad_nonfinite",),
    "loss_scale": ("loss_scale", "scale"),
    "learning_rate": ("learning_rate", "lr", "epoch_learning_rate", "epoch_lr"),
    "skipped": ("skipped", "skipped_iterations"),
    "weight_nonfinite": ("weight_nonfinite",),
    "input_nonfinite": ("input_nonfinite",),
    "label_nonfinite": ("label_nonfinite",),
    "val_loss": ("val_loss", "validation_loss", "valid_loss", "eval_loss", "loss/val", "loss/validation",
                 "loss/valid", "evaluation_loss_vs_iterations"),
}  # fmt: skip
OWN = ("step_time_s", "optimizer_step", "batch_size")  # only under our own names
LAYER_SERIES = "layer_"  # how series with a column for each layer begin
_SERIES_OF = {name: series for series, names in NAMES.items() for name in names}
_TRAINING = re.compile(r"(train|training)[/_]")
_PART = re.compile(r"(loss_?\d+|.+[_/]loss|loss/.+)")  # of one output or network
_VALIDATION = re.compile(r"(val|valid|validation|eval|test)/")


def normal(name: str) -> str:
    """Return a name as the tables above spell it."""
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def series_of(name: str) -> str | None:
    """Return the series that a column holds; None for one that no detector reads."""
    key = normal(name)
    if key in OWN or (key not in _SERIES_OF and (key.startswith("val_") or key.endswith("_running"))):
        return key
    if validation := _VALIDATION.match(key):
        inner = series_of(key[validation.end() :])
        return "val_loss" if inner in ("loss", "val_loss") else None
    if key not in _SERIES_OF and (training := _TRAINING.match(key)):
        key = key[training.end() :]
    return _SERIES_OF.get(key)


def loss_part_of(name: str) -> str | None:
    """Return the column's own name where it holds the loss of one output or network; None for any other."""
    key = normal(name)
    if key in _SERIES_OF or _VALIDATION.match(key) or key.startswith("val_"):
        return None
    if training := _TRAINING.match(key):
        key = key[training.end() :]
    return key if _PART.fullmatch(key) and key not in _SERIES_OF else None


def layer_of(name: str) -> tuple[str, str] | None:
    """Return (series, layer) of a column that an export names `series/layer`."""
    series, slash, layer = name.partition("/")
    return (series, layer) if slash and layer and series.startswith(LAYER_SERIES) else None


def is_surely_number(series: str) -> bool:
    """Whether text in this series is a mistake; names of metrics may also begin something else."""
    return series in NAMES


def preference(name: str, series: str) -> int:
    """Return how well a name fits its series: of two columns the lower one counts."""
    names, key = NAMES.get(series, ()), normal(name)
    return names.index(key) if key in names else len(names)


def is_by_epoch(name: str) -> bool:
    """Whether Keras writes this tag once an epoch, its step being the epoch."""
    return normal(name).split("/")[-1].startswith("epoch_")


def is_by_batch(name: str) -> bool:
    """Whether Keras writes this tag with the batch as its step."""
    return normal(name).split("/")[-1].startswith(("batch_", "evaluation_"))
