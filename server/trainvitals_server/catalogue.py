"""The texts of every cause: what it is, what to do in words, and Keras code that does it.

Only texts; which cause applies is decided in `causes`.
"""

from __future__ import annotations

from trainvitals_server.entry import Entry
from trainvitals_server.snippets import CLIP, COMPILE_AGAIN, LOWER
from trainvitals_server.stuck_catalogue import STUCK_CATALOGUE

CATALOGUE: dict[str, Entry] = {
    "learning_rate_too_high": Entry(
        "the learning rate is too high",
        "Go back to weights from before the onset and train on with a learning rate 3 to 10 "
        "times lower, or warm it up over the first few hundred steps; clip the gradient norm.",
        COMPILE_AGAIN + LOWER + f"compile_again(model, learning_rate=rate, {CLIP})\n",
    ),
    "no_gradient_clipping": Entry(
        "nothing limits the size of a step: gradients are not clipped",
        "Clip the gradients by their norm. It bounds what one bad batch or one long sequence can do.",
        COMPILE_AGAIN + "compile_again(model, global_clipnorm=1.0, clipnorm=None, clipvalue=None)\n",
    ),
    "initialisation": Entry(
        "the model starts outside the range in which its loss is defined or its signals stay small",
        "Look at the very first batch: print the outputs' range. Use the default initialisers "
        "(glorot_uniform, he_normal for ReLU), normalise the inputs, and keep the last "
        "layer's outputs where the loss is defined.",
        """\
import keras

layer = keras.layers.Dense(64, activation="relu", kernel_initializer="he_normal")
normalise = keras.layers.Normalization()  # normalise.adapt(x_train) before fit
""",
    ),
    "log_of_zero": Entry(
        "the logarithm of zero: a probability reached exactly 0 or 1",
        "Let the loss work on logits (`from_logits=True`, no sigmoid or softmax at the end), "
        "or clip the argument of the logarithm.",
        COMPILE_AGAIN
        + """\
from keras import ops


def safe_bce(y, p):
    p = ops.clip(p, 1e-7, 1 - 1e-7)
    return -ops.mean(y * ops.log(p) + (1 - y) * ops.log(1 - p))


compile_again(model, loss=safe_bce)
""",
    ),
    "log_of_negative": Entry(
        "the logarithm of a negative number",
        "Check the range of what goes into the logarithm, targets included: standardised "
        "targets are negative. Take log1p of raw non-negative values, or use a loss that is "
        "defined for them.",
        COMPILE_AGAIN
        + """\
from keras import ops


def safe_msle(y, p):
    return ops.mean(ops.square(ops.log1p(ops.relu(y)) - ops.log1p(ops.relu(p))))


compile_again(model, loss=safe_msle)
""",
    ),
    "division_by_zero": Entry(
        "a division by zero",
        "Add a small constant to the denominator, or use `divide_no_nan`. Look for empty "
        "masks, empty classes, a batch whose sum or variance is 0.",
        """\
from keras import ops


def dice(y, p, smooth=1.0):
    axes = tuple(range(1, len(p.shape)))
    overlap = ops.sum(y * p, axis=axes)
    return ops.mean(1 - (2 * overlap + smooth) / (ops.sum(y, axis=axes) + ops.sum(p, axis=axes) + smooth))
""",
    ),
    "sqrt_gradient_at_zero": Entry(
        "the gradient of a square root at zero is infinite",
        "Put a small constant under the root. The value hardly changes, the gradient becomes "
        "finite. Duplicate pairs and zero vectors are what triggers it.",
        """\
import keras
from keras import ops

distance = keras.layers.Lambda(
    lambda t: ops.sqrt(ops.sum(ops.square(t[0] - t[1]), axis=-1, keepdims=True) + 1e-12)
)
""",
    ),
    "pow_gradient_at_zero": Entry(
        "the gradient of a power with exponent below one is infinite at zero",
        "Keep the base away from zero: `ops.maximum(base, 1e-7) ** gamma`, or use an exponent "
        "of at least one.",
        """\
from keras import ops


def focal(y, p, gamma=0.5):
    pt = y * p + (1 - y) * (1 - p)
    return ops.mean(-(ops.maximum(1 - pt, 1e-6) ** gamma) * ops.log(pt + 1e-7))
""",
    ),
    "where_gradient": Entry(
        "`where` selects the safe branch, but the gradient of the other one is still "
        "computed: 0 times infinity is NaN",
        "Make the argument safe first, then select (the double where).",
        """\
from keras import ops


def safe_log(x):
    positive = x > 0
    return ops.where(positive, ops.log(ops.where(positive, x, ops.ones_like(x))), ops.zeros_like(x))
""",
    ),
    "exp_overflow": Entry(
        "an exponential overflows",
        "Subtract the maximum before the exponential, or use the library's softmax, logsumexp "
        "or softplus, which do.",
        """\
import keras

probabilities = keras.layers.Softmax()  # or activation="softmax"; never exp(z) / sum(exp(z)) by hand
""",
    ),
    "float16_mask_overflow": Entry(
        "a mask value at the very end of float16's range: adding a score to it gives -inf, "
        "and softmax of a row of -inf is NaN",
        "Use half of the dtype's minimum for the mask (or compute scores and softmax in "
        "float32). For fully masked rows the scores must stay finite after adding the mask.",
        """\
import numpy as np
from keras import ops


def add_mask(score, mask):
    low = np.array(np.finfo("float16").min / 2, "float16")
    return score + ops.cast(low, score.dtype) * (1 - ops.cast(mask, score.dtype))[:, None, :]
""",
    ),
    "float16_activation_overflow": Entry(
        "an activation is beyond float16's range (65504)",
        "Let the layer that overflows compute in float32, normalise its input, or use bfloat16.",
        """\
import keras

layer = keras.layers.Dense(32, dtype="float32")  # only the layer that overflows
keras.mixed_precision.set_global_policy("mixed_bfloat16")  # or the whole model, where the device has it
""",
    ),
    "float16_overflow": Entry(
        "values leave float16's range (65504) on the way forward or back",
        "Use mixed_bfloat16, or float32 for the layers that overflow (normalisation, softmax, the loss).",
        """\
import keras

keras.mixed_precision.set_global_policy("mixed_bfloat16")
""",
    ),
    "bad_input": Entry(
        "this batch has NaN or infinite inputs",
        "Find and drop or repair these samples before training; check the column they come from.",
        """\
import numpy as np

good = np.isfinite(x).reshape(len(x), -1).all(axis=1)
print(f"{(~good).sum()} bad samples, first at {np.flatnonzero(~good)[:10]}")
x, y = x[good], y[good]
""",
    ),
    "bad_label": Entry(
        "labels that are NaN, infinite, or outside the range that the loss is defined for",
        "Check the labels' range: class ids run from 0 to classes - 1, probabilities from 0 to 1. Labels of "
        "-1 and 1, of 1 and 2, or of 0 to 255 must be brought to 0 to 1 for a cross-entropy.",
        """\
import numpy as np

labels = np.asarray(y, "float64").reshape(len(y), -1)
print("labels from", np.nanmin(labels), "to", np.nanmax(labels))
name = getattr(model.loss, "name", str(model.loss))
low, high = (0, 1) if "crossentropy" in name else (-np.inf, np.inf)
if "sparse" in name:
    high = model.output_shape[-1] - 1
good = (np.isfinite(labels) & (labels >= low) & (labels <= high)).all(axis=1)
x, y = x[good], y[good]  # or repair them: (y + 1) / 2, y - 1, y / 255
""",
    ),
    "optimizer_epsilon": Entry(
        "Adam's epsilon is too small: with the loss near zero sqrt(v) decays to round-off, "
        "and dividing by it turns noise into a full step",
        "Raise epsilon (1e-4 to 1e-7), or stop once the loss is this low. Gradient clipping "
        "does not help: Adam divides the clipped gradient just the same.",
        COMPILE_AGAIN + "compile_again(model, epsilon=1e-4)\n",
    ),
    "float16_variables": Entry(
        "the variables themselves are float16: Adam's epsilon of 1e-8 is zero there",
        "Use mixed_float16 (float32 variables, float16 computation) instead of a pure float16 model.",
        """\
import keras

keras.mixed_precision.set_global_policy("mixed_float16")  # not keras.config.set_floatx("float16")
""",
    ),
    "loss_scale_floor": Entry(
        "the gradient is not finite at any loss scale, and Keras halves the scale without a "
        "floor until it is 0",
        "The scale is not the fault: find what makes the gradient non-finite (the layer named "
        "here first). Until then stop the run before the scale reaches 0, because the first "
        "good step after that writes NaN into every weight.",
        """\
import keras


class StopAtScaleFloor(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if float(self.model.optimizer.dynamic_scale) < 1:
            self.model.stop_training = True
""",
    ),
    "data_outlier": Entry(
        "one batch that is unlike the others",
        "Look at this batch: outliers, wrong units, corrupt targets. A robust loss (Huber) or "
        "gradient clipping limits what one batch can do.",
        COMPILE_AGAIN + f"compile_again(model, loss=keras.losses.Huber(), {CLIP})\n",
    ),
    "vanishing_depth": Entry(
        "the gradient shrinks from layer to layer on its way back: too many saturating layers in a row",
        "Use ReLU (or GELU) with he_normal instead of sigmoid or tanh between the layers, or add residual "
        "connections or normalisation. A higher learning rate does not help: the last layers would diverge.",
        COMPILE_AGAIN
        + """\
last = model.layers[-1].name


def opened(layer):
    config = layer.get_config()
    if layer.name != last and config.get("activation") in ("sigmoid", "tanh"):
        config.update(activation="relu", kernel_initializer="he_normal")
    return type(layer).from_config(config)


old = model
model = keras.models.clone_model(old, clone_function=opened)  # with new weights
compile_again(model, like=old)
""",
    ),
    "dead_relu": Entry(
        "dead ReLU units: an update pushed them below zero for every input, and there they get no gradient",
        "Start again from weights before that step (dead units do not come back) with a lower learning rate "
        "and clipping; scale targets and inputs to about 1; or use leaky_relu, which always passes a little.",
        COMPILE_AGAIN
        + LOWER
        + """

def leaky(layer):
    config = layer.get_config()
    if config.get("activation") == "relu":
        config.update(activation="leaky_relu", kernel_initializer="he_normal")
    return type(layer).from_config(config)


old = model
model = keras.models.clone_model(old, clone_function=leaky)  # with new weights
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
    "loss_scale_not_applied": Entry(
        "the loss was not multiplied by the loss scale, but `apply` divides the gradients by it",
        "Take the gradients of `optimizer.scale_loss(loss)`, not of the loss. `apply` undoes the scale.",
        """\
import tensorflow as tf


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
        scaled = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)  # divides by the scale
    return loss, gradients
""",
    ),
    "gradients_unscaled_twice": Entry(
        "the gradients are divided by the loss scale twice: by your loop and again by `apply`",
        "Do not divide by the scale yourself: a LossScaleOptimizer's `apply` does. If you need the true "
        "gradients (for clipping), let the optimizer inside it clip.",
        """\
import tensorflow as tf


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        scaled = optimizer.scale_loss(loss := loss_fn(y, model(x, training=True)))
    gradients = tape.gradient(scaled, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)  # no division before this line
    return loss, gradients
""",
    ),
    "gradients_not_unscaled": Entry(
        "the gradients still carry the loss scale: the loss was multiplied by it and nothing divides by it",
        "Divide the gradients by the same scale before `apply`, or let `LossScaleOptimizer` do both.",
        """\
import keras
import tensorflow as tf

optimizer = keras.optimizers.LossScaleOptimizer(optimizer)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
        scaled = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)  # divides by the scale
    return loss, gradients
""",
    ),
    **STUCK_CATALOGUE,
    "unknown": Entry(
        "the measurements do not single out a cause",
        "Run the failing step once more with `tf.debugging.enable_check_numerics()` and "
        "`run_eagerly=True`: it names the first operation whose result is not finite.",
        COMPILE_AGAIN
        + """\
import tensorflow as tf

tf.debugging.enable_check_numerics()
compile_again(model)
model.run_eagerly = True
""",
    ),
}
