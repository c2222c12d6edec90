"""Made runs whose layers' outputs were measured: what proves a finding, what refutes it, and healthy ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from layered import ROWS, dead, flat, layered, saturated, usual
from traces import learning
from trainvitals.wire import FloatArray, Layer
from trainvitals_server.batch import Batch, Series

EVERY = 10
LAYERS = (
    Layer(name="d0", kind="Dense", activation="linear"),
    Layer(name="act0", kind="ReLU", activation="relu", has_gradient=False),
    Layer(name="d1", kind="Dense", activation="relu"),
    Layer(name="d2", kind="Dense", activation="tanh"),
    Layer(name="d3", kind="Dense", activation="sigmoid"),
)
LEARNING = [0, 2, 3, 4]  # those with a gradient
Cells = Mapping[str, FloatArray | float]


def with_outputs(
    batch: Batch, *, dead: Cells, saturated: Cells, sizes: Cells, dtype: str = "float32", every: int = EVERY
) -> Batch:
    """Return a batch of four layers with a ReLU behind the first one, and what was measured of them."""
    norms = batch.layer_columns["layer_grad_norm"]
    wide = np.zeros((len(batch), len(LAYERS)))
    there = np.zeros(wide.shape, bool)
    wide[:, LEARNING], there[:, LEARNING] = norms.values, norms.present
    columns = {"layer_grad_norm": Series(wide, there)}
    for name, cells in (("layer_dead_share", dead), ("layer_saturated_share", saturated),
                        ("layer_activation_absmax", {**dict.fromkeys(names(), 1.0), **sizes})):  # fmt: skip
        columns[name] = _sampled(cells, len(batch), every)
    layers = tuple(replace(one, compute_dtype=dtype) for one in LAYERS)
    return Batch(batch.steps, batch.columns, columns, layers)


def names() -> list[str]:
    return [layer.name for layer in LAYERS]


def _sampled(cells: Cells, rows: int, every: int) -> Series:
    values, there = np.zeros((rows, len(LAYERS))), np.zeros((rows, len(LAYERS)), bool)
    for name, found in cells.items():
        place = names().index(name)
        values[:, place], there[::every, place] = found, True
    values[~there] = 0.0
    return Series(values, there)


def after(step: int, value: float, before: float = 0.05) -> FloatArray:
    """Return a share that is `value` from `step` on."""
    return np.where(np.arange(ROWS) >= step, value, before)


USUAL: Cells = {"d0": 0.0, "act0": 0.1, "d1": 0.1, "d2": 0.0, "d3": 0.0}
UNBENT: Cells = {"d2": 0.1, "d3": 0.97}  # the head is sure, as it should be


def dead_relu(seed: int = 0) -> Batch:
    """Lose the gradient of the first two layers at step 250, where all units of the second fall silent."""
    shares = {**USUAL, "d1": after(250, 1.0)}
    return with_outputs(dead(seed), dead=shares, saturated=UNBENT, sizes={})


def dead_behind(seed: int = 0) -> Batch:
    """Lose the gradient of the first layer alone; the units that fall silent are of the ReLU behind it."""
    norms = usual(4, seed=seed)
    norms[250:, 0] = 0.0
    shares = {**USUAL, "act0": after(250, 1.0)}
    return with_outputs(layered(norms, flat(seed=seed)), dead=shares, saturated=UNBENT, sizes={})


def cut_elsewhere(seed: int = 0) -> Batch:
    """Lose the gradient of two layers whose units go on firing: something stopped it."""
    return with_outputs(dead(seed), dead=USUAL, saturated=UNBENT, sizes={})


def dying(seed: int = 0) -> Batch:
    """Have nearly all units of a layer fall silent; the few that are left still get a gradient."""
    batch = layered(usual(4, seed=seed), learning(ROWS, seed=seed))
    return with_outputs(batch, dead={**USUAL, "d1": after(200, 0.97)}, saturated=UNBENT, sizes={})


def bent_tanh(seed: int = 0) -> Batch:
    """Have the third layer pass no gradient on, as its tanh is at its limits."""
    norms = usual(4, seed=seed)
    norms[250:, :3] *= 1e-5
    batch = saturated(seed)
    return with_outputs(layered(norms, batch.columns["loss"].values), dead=USUAL,
                        saturated={**UNBENT, "d2": after(250, 0.98)}, sizes={})  # fmt: skip


def stuck_at_limits(seed: int = 0) -> Batch:
    """Have a tanh at its limits from the start while the loss does not fall; the gradients look usual."""
    batch = layered(usual(4, seed=seed), flat(seed=seed))
    return with_outputs(batch, dead=USUAL, saturated={**UNBENT, "d2": 0.97}, sizes={})


def growing_half(seed: int = 0) -> Batch:
    """Grow the outputs of a float16 layer to a fifth of its end, by a factor of 1.02 a step."""
    sizes = np.minimum(8.0 * 1.02 ** np.arange(ROWS), 13_000.0)
    batch = layered(usual(4, seed=seed), learning(ROWS, seed=seed))
    return with_outputs(batch, dead=USUAL, saturated=UNBENT, sizes={"d1": sizes}, dtype="float16")


def sparse(seed: int = 0) -> Batch:
    """Learn with two thirds of the units of a layer silent."""
    batch = layered(usual(4, seed=seed), learning(ROWS, seed=seed))
    return with_outputs(batch, dead={**USUAL, "d1": 0.66, "d2": 1.0}, saturated=UNBENT, sizes={})


def gated(seed: int = 0) -> Batch:
    """Learn with a tanh at its limits."""
    batch = layered(usual(4, seed=seed), learning(ROWS, seed=seed))
    return with_outputs(batch, dead=USUAL, saturated={**UNBENT, "d2": 0.95}, sizes={})


def masked_half(seed: int = 0) -> Batch:
    """Learn in float16 with a mask of -65504 and large, steady outputs."""
    batch = layered(usual(4, seed=seed), learning(ROWS, seed=seed))
    rng = np.random.default_rng(seed)
    sizes = {"d1": np.full(ROWS, 65504.0), "d2": 3000.0 * np.exp(0.3 * rng.normal(size=ROWS))}
    return with_outputs(batch, dead=USUAL, saturated=UNBENT, sizes=sizes, dtype="float16")


def growing_float32(seed: int = 0) -> Batch:
    """Grow outputs as `growing_half` does, where that is no trouble."""
    batch = growing_half(seed)
    layers = tuple(replace(one, compute_dtype="float32") for one in batch.layers)
    return Batch(batch.steps, batch.columns, batch.layer_columns, layers)


FAILING_OUTPUTS = {
    "dead_relu": (dead_relu, "dead_units", "d1"),
    "dead_behind": (dead_behind, "dead_units", "d0"),
    "dying": (dying, "dead_units", "d1"),
    "bent_tanh": (bent_tanh, "saturation", "d2"),
    "stuck_at_limits": (stuck_at_limits, "saturation", "d2"),
    "growing_half": (growing_half, "activation_overflow", "d1"),
}
HEALTHY_OUTPUTS = {
    "sparse": sparse,
    "gated": gated,
    "masked_half": masked_half,
    "growing_float32": growing_float32,
}
