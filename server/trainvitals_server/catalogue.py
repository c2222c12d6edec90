"""The texts of every cause: what it is, what to do in words, and Keras code that does it.

Only texts; which cause applies is decided in `causes`.
"""

from __future__ import annotations

from trainvitals_server.entry import Entry
from trainvitals_server.half_catalogue import HALF_CATALOGUE
from trainvitals_server.layer_catalogue import LAYER_CATALOGUE
from trainvitals_server.operation_catalogue import OPERATION_CATALOGUE
from trainvitals_server.snippets import CLIP, COMPILE_AGAIN, EARLIER_WEIGHTS, LOWER
from trainvitals_server.stuck_catalogue import STUCK_CATALOGUE

CATALOGUE: dict[str, Entry] = {
    "learning_rate_too_high": Entry(
        "the learning rate is too high",
        "Train from weights saved before it began, or start again, with a learning rate 3 to 10 times "
        "lower, or warm it up over the first few hundred steps. Clip the gradients, too (`clipnorm=1.0`).",
        COMPILE_AGAIN + LOWER + EARLIER_WEIGHTS + f"compile_again(model, learning_rate=rate, {CLIP})\n",
    ),
    "no_gradient_clipping": Entry(
        "nothing limits the size of a step: gradients are not clipped",
        "Clip the gradients by their norm. It bounds what one bad batch or one long sequence can do.",
        COMPILE_AGAIN
        + EARLIER_WEIGHTS
        + "compile_again(model, global_clipnorm=1.0, clipnorm=None, clipvalue=None)\n",
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

good = np.isfinite(labels).all(axis=1)
x, y, labels = x[good], y[good], labels[good]
inside = ((labels >= low) & (labels <= high)).all(axis=1)
if inside.mean() > 0.9:
    x, y = x[inside], y[inside]  # single wrong ones
else:
    y = (y - labels.min()) / (labels.max() - labels.min()) * (high - low) + low  # another code: -1 and 1
""",
    ),
    "bad_sample_weight": Entry(
        "sample weights that are NaN or infinite",
        "Look at how they are computed: 1 / count of a class without samples is infinite. Negative ones turn "
        "the loss round.",
        """\
import numpy as np

good = np.isfinite(sample_weight) & (sample_weight >= 0)
print(f"{(~good).sum()} bad sample weights, first at {np.flatnonzero(~good)[:10]}")
x, y, sample_weight = x[good], y[good], sample_weight[good]
""",
    ),
    "optimizer_epsilon": Entry(
        "the optimizer's epsilon is too small: once the gradients are almost 0, dividing by their own size "
        "turns rounding noise into a full step",
        "Set epsilon to 1e-4 (Keras's default is 1e-7), or stop once the loss is this low. Clipping does not "
        "help: the optimizer divides the clipped gradients by their size just the same.",
        COMPILE_AGAIN + "compile_again(model, epsilon=1e-4)\n",
    ),
    "data_outlier": Entry(
        "one batch that is unlike the others",
        "Look at this batch for outliers, wrong units, corrupt targets. Gradient clipping limits what one "
        "batch can do; in regression so does the Huber loss in place of the squared error.",
        COMPILE_AGAIN
        + f"""\
name = str(getattr(model.loss, "name", model.loss)).lower()
robust = keras.losses.Huber() if name in ("mse", "mean_squared_error") else None
compile_again(model, loss=robust, {CLIP})
""",
    ),
    **OPERATION_CATALOGUE,
    **HALF_CATALOGUE,
    **LAYER_CATALOGUE,
    **STUCK_CATALOGUE,
    "unknown": Entry(
        "what was measured does not single out a cause",
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
