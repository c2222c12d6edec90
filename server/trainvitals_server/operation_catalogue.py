"""The texts of operations that are undefined somewhere, or overflow, and of what weights that are so do.

Only texts.
"""

from __future__ import annotations

from trainvitals_server.entry import Entry
from trainvitals_server.snippets import COMPILE_AGAIN

OPERATION_CATALOGUE: dict[str, Entry] = {
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
        "Look at the range of what goes into the logarithm, the targets included: standardised targets are "
        "negative. Use targets as they were before standardising and log1p, or a loss without a logarithm.",
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
        "Add a small constant to the denominator, or use `keras.ops.divide_no_nan`. Look for what makes it "
        "0: an empty mask, a class without samples, a batch whose sum or variance is 0.",
        COMPILE_AGAIN
        + """\
from keras import ops


def dice(y, p, smooth=1.0):
    axes = tuple(range(1, len(p.shape)))
    overlap = ops.sum(y * p, axis=axes)
    return ops.mean(1 - (2 * overlap + smooth) / (ops.sum(y, axis=axes) + ops.sum(p, axis=axes) + smooth))


compile_again(model, loss=dice)
""",
    ),
    "sqrt_gradient_at_zero": Entry(
        "the gradient of a square root at zero is infinite",
        "Put a small constant under the root: the value hardly changes, and the gradient becomes finite. It "
        "happens where a distance or a norm is exactly 0: pairs of equal samples, vectors of zeros.",
        """\
import keras
from keras import ops

# use it in your model where the distance is taken
distance = keras.layers.Lambda(
    lambda t: ops.sqrt(ops.sum(ops.square(t[0] - t[1]), axis=-1, keepdims=True) + 1e-12)
)
""",
    ),
    "pow_gradient_at_zero": Entry(
        "the gradient of a power with exponent below one is infinite at zero",
        "Keep the base away from zero: `ops.maximum(base, 1e-6) ** gamma`, or use an exponent "
        "of at least one.",
        COMPILE_AGAIN
        + """\
from keras import ops


def focal(y, p, gamma=0.5):
    pt = y * p + (1 - y) * (1 - p)
    return ops.mean(-(ops.maximum(1 - pt, 1e-6) ** gamma) * ops.log(pt + 1e-7))


compile_again(model, loss=focal)
""",
    ),
    "infinite_slope": Entry(
        "the gradient of an operation is infinite at a value where the operation itself is finite",
        "Keep the argument away from that value: `ops.clip(x, -0.999999, 0.999999)` before `arccos` or "
        "`arcsin`, no exact zeros in a cumulative product. Equal samples, or all zeros, often do it.",
        """\
from keras import ops


def safe_arccos(x, margin=1e-6):
    return ops.arccos(ops.clip(x, margin - 1.0, 1.0 - margin))
""",
    ),
    "root_of_negative": Entry(
        "the root of a negative number",
        "Look at what goes under the root (or the power with a broken exponent): a variance or a distance "
        "that is 0 up to rounding can come out as -1e-9. Keep it at or above a small positive constant.",
        """\
from keras import ops


def deviation(x):  # sqrt(E[x^2] - E[x]^2), safe at and below 0
    variance = ops.mean(ops.square(x), axis=-1) - ops.square(ops.mean(x, axis=-1))
    return ops.sqrt(ops.maximum(variance, 1e-12))
""",
    ),
    "bad_initial_weights": Entry(
        "weights that were NaN or infinite before the first step",
        "Training has not done it: look at where the weights come from. A checkpoint of a run that had "
        "failed already, a conversion to float16 or an initialiser of your own are the usual places.",
        """\
import numpy as np

for weight in model.weights:
    bad = int((~np.isfinite(np.asarray(weight, "float64"))).sum())
    if bad:
        print(weight.path, bad, "of", weight.shape, "are NaN or infinite")
""",
    ),
    "where_gradient": Entry(
        "`where` selects the safe branch, but the gradient of the other one is still "
        "computed: 0 times infinity is NaN",
        "Make the argument safe first, then select: a `where` inside and one outside.",
        """\
from keras import ops


def safe_log(x):  # the same for a root, a division, a power
    positive = x > 0
    return ops.where(positive, ops.log(ops.where(positive, x, ops.ones_like(x))), ops.zeros_like(x))
""",
    ),
    "fully_masked_row": Entry(
        "a softmax over nothing: every score of a row is masked with -infinity",
        "Mask with a large finite number, of which a row may consist: its softmax is even, and not NaN. "
        "Where such a row must count for nothing, set its result to 0 by the mask; a padded sequence of "
        "length 0 or a left-padded causal mask often makes one.",
        """\
from keras import ops


def masked_softmax(scores, keep):  # keep: True where a score may count
    weights = ops.softmax(ops.where(keep, scores, ops.full_like(scores, -1e4)))
    return ops.where(keep, weights, ops.zeros_like(weights))
""",
    ),
    "exp_overflow": Entry(
        "an exponential overflows",
        "Subtract the maximum before the exponential, or use Keras's own softmax, logsumexp or softplus, "
        "which do.",
        """\
import keras

# in place of your exp(z) / sum(exp(z)); or activation="softmax"
probabilities = keras.layers.Softmax()
""",
    ),
}
