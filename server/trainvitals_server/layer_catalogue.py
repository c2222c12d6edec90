"""The texts of layers that pass no gradient, or too much of it, from where they start. Only texts."""

from __future__ import annotations

from trainvitals_server.entry import Entry
from trainvitals_server.snippets import CLIP, COMPILE_AGAIN, LOWER, RENEW

LAYER_CATALOGUE: dict[str, Entry] = {
    "initialisation": Entry(
        "with the first weights numbers overflow, or leave the range in which the loss is defined",
        "Look at the very first batch: print the outputs' range. Use the default initialisers "
        "(glorot_uniform, he_normal for ReLU), normalise the inputs, and keep the last "
        "layer's outputs where the loss is defined.",
        COMPILE_AGAIN
        + RENEW
        + """\
def usual(layer, config):
    for name in {"kernel_initializer", "recurrent_initializer"} & config.keys():
        start = "he_normal" if config.get("activation") == "relu" else "glorot_uniform"
        config[name] = "orthogonal" if name == "recurrent_initializer" else start


normalise = keras.layers.Normalization()
normalise.adapt(x)
old = model
model = keras.Sequential([normalise, renew(old, usual)])
compile_again(model, like=old)
""",
    ),
    "vanishing_depth": Entry(
        "the gradient shrinks from layer to layer on its way back: too many saturating layers in a row",
        "Use ReLU (or GELU) with he_normal instead of sigmoid or tanh between the layers, or add residual "
        "connections or normalisation. A higher learning rate does not help: the last layers would diverge.",
        COMPILE_AGAIN
        + RENEW
        + """\
last = model.layers[-1].name


def opened(layer, config):
    if layer.name != last and config.get("activation") in ("sigmoid", "tanh"):
        config.update(activation="relu", kernel_initializer="he_normal")


old = model
model = renew(old, opened)
compile_again(model, like=old)
""",
    ),
    "dead_relu": Entry(
        "dead ReLU units: they are below zero for every input, and there they get no gradient",
        "Start again, if you can with weights from before it, with a lower learning rate and clipping: dead "
        "units seldom come back by themselves. Scale targets and inputs to about 1, or use leaky_relu, which "
        "always passes a little.",
        COMPILE_AGAIN
        + LOWER
        + "\n\n"
        + RENEW
        + """\
def leaky(layer, config):
    if config.get("activation") == "relu":
        config.update(activation="leaky_relu", kernel_initializer="he_normal")


old = model
model = renew(old, leaky)
"""
        + f"compile_again(model, like=old, learning_rate=rate, {CLIP})\n",
    ),
    "saturated_activation": Entry(
        "a saturated activation: its inputs are so large that it is flat there and passes no gradient back",
        "Normalise the inputs, start from smaller weights (the default initialisers), lower the learning "
        "rate; put a normalisation layer before the activation, or use ReLU or GELU.",
        COMPILE_AGAIN
        + """\
normalise = keras.layers.Normalization()
normalise.adapt(x)
old = model
model = keras.Sequential([normalise, keras.models.clone_model(old)])  # with new weights
compile_again(model, like=old)
""",
    ),
}
