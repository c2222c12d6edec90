"""Which outputs of layers are watched, and what of them is dead or saturated; nothing is measured here."""

from __future__ import annotations

from dataclasses import dataclass

from trainvitals.probe.kinds import is_a
from trainvitals.probe.types import Model, Value

_PACKAGES = ("keras", "tf_keras", "tensorflow")
# Layers of Keras that only move numbers, choose among them or drop some: what comes out has come in.
MOVERS = frozenset({
    "InputLayer", "Identity", "Reshape", "Flatten", "Permute", "RepeatVector", "Concatenate", "Masking",
    "Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "AlphaDropout", "GaussianDropout",
    "GaussianNoise", "ActivityRegularization", "UnitNormalization", "MaxPooling1D", "MaxPooling2D",
    "MaxPooling3D", "GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D", "UpSampling1D",
    "UpSampling2D", "UpSampling3D", "ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D", "Cropping1D",
    "Cropping2D", "Cropping3D",
})  # fmt: skip
# What their output is, is not what their `activation` gives: a gate is multiplied with it.
GATED = frozenset(
    {"LSTM", "LSTMCell", "GRU", "GRUCell", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", "CuDNNLSTM"}
)
# A unit of these that never comes out above 0 never fires; of all others, one that is exactly 0.
ONE_SIDED = frozenset({"relu", "relu6", "gelu", "silu", "swish", "mish", "hard_silu", "hard_swish"})
LIMITS: dict[str, tuple[float | None, float | None]] = {
    "tanh": (-1.0, 1.0),
    "hard_tanh": (-1.0, 1.0),
    "softsign": (-1.0, 1.0),
    "sigmoid": (0.0, 1.0),
    "hard_sigmoid": (0.0, 1.0),
    "sparse_sigmoid": (0.0, 1.0),
    "relu6": (None, 6.0),
}
SHARES = frozenset({"softmax", "log_softmax", "sparsemax"})  # a share of 0 is an answer, no dead unit


@dataclass(frozen=True, slots=True)
class Rule:
    """How the outputs of one layer are judged.

    `channels` is the axis of its units, None where it has none; `limits` are the ends of what its activation
    can give, where it has ends.
    """

    activation: str = ""
    channels: int | None = -1
    is_one_sided: bool = False
    limits: tuple[float | None, float | None] = (None, None)

    @property
    def is_limited(self) -> bool:
        """Return whether an output can be saturated."""
        return self.limits != (None, None)


def rule_of(layer: Value) -> Rule:
    """Return how the outputs of `layer` are judged, by what is known of its activation."""
    name, upper = _activation_of(layer)
    is_first = getattr(layer, "data_format", None) == "channels_first"
    return Rule(
        activation=name,
        channels=None if name in SHARES else 1 if is_first else -1,
        is_one_sided=name in ONE_SIDED,
        limits=(None, upper) if upper is not None else LIMITS.get(name, (None, None)),
    )


def watched_layers(model: Model) -> list[Value]:
    """Return the layers whose outputs are watched; a container gives out what one of them has given out."""
    found = _within(model)
    # Keras also calls a cell once beside the loop, for its shapes: nobody needs that output.
    cells = {id(inner) for layer in found if is_a(layer, "RNN") for inner in _within(layer.cell)}
    return [layer for layer in found if not is_a(layer, *MOVERS) and id(layer) not in cells]


def _within(layer: Value) -> list[Value]:
    flatten = getattr(layer, "_flatten_layers", None)
    return list(flatten()) if callable(flatten) else []


def _activation_of(layer: Value) -> tuple[str, float | None]:
    """Return the name of the activation that made the output, and an upper limit that the layer has set."""
    kind = type(layer)
    if not _is_of_keras(getattr(kind, "call", kind)) or kind.__name__ in GATED:
        return "", None
    if kind.__name__ == "ReLU":
        is_leaky = bool(getattr(layer, "negative_slope", 0) or getattr(layer, "threshold", 0))
        upper = getattr(layer, "max_value", None)
        return "leaky_relu" if is_leaky else "relu", None if upper is None else float(upper)
    if kind.__name__ == "Softmax":
        return "softmax", None
    activation = getattr(layer, "activation", None)
    name = getattr(activation, "__name__", "")
    return (str(name), None) if name and _is_of_keras(activation) else ("", None)


def _is_of_keras(thing: object) -> bool:
    """Return whether a class or function is one of Keras or TensorFlow, whose meaning is known."""
    return str(getattr(thing, "__module__", "")).partition(".")[0] in _PACKAGES
