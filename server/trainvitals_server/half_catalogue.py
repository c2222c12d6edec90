"""The texts of half precision and of loss scales gone wrong. Only texts."""

from __future__ import annotations

from trainvitals_server.entry import Entry
from trainvitals_server.snippets import FLOAT32_VARIABLES, IN_BFLOAT16, SCALED_STEP

HALF_CATALOGUE: dict[str, Entry] = {
    "float16_mask_overflow": Entry(
        "a mask value at the very end of float16's range: adding a score to it gives -Inf; all scores of a "
        "fully masked row become -Inf, and the softmax of such a row is NaN",
        "Mask with -3e4 (half of float16's minimum of -65504) in place of the minimum itself, or compute "
        "scores and softmax in float32. A lower loss scale does not help: it is the forward pass that fails.",
        """\
import numpy as np
from keras import ops


def add_mask(score, mask):  # mask: 1 for a place that may be looked at, 0 for one that may not
    low = np.array(np.finfo("float16").min / 2, "float16")
    return score + ops.cast(low, score.dtype) * (1 - ops.cast(mask, score.dtype))[:, None, :]
""",
    ),
    "float16_activation_overflow": Entry(
        "an activation is beyond float16's range (65504)",
        "Normalise the input of the layer that overflows, or compute in bfloat16, which has the range of "
        "float32. A float32 layer alone is not enough where the next one is float16 again.",
        IN_BFLOAT16,
    ),
    "float16_overflow": Entry(
        "values leave float16's range (65504) on the way forward or back",
        "Use mixed_bfloat16, or float32 for the layers that overflow (normalisation, softmax, the loss).",
        IN_BFLOAT16,
    ),
    "float16_variables": Entry(
        "the variables themselves are float16: an epsilon of 1e-8 is zero there, and small updates are lost",
        'Call `keras.config.set_dtype_policy("mixed_float16")` before the model is built: its variables '
        "are then float32, and only the computation is float16. If they must be float16, set the optimizer's "
        "epsilon to 1e-4.",
        FLOAT32_VARIABLES,
    ),
    "loss_scale_floor": Entry(
        "the gradients are NaN or infinite at any loss scale, and Keras halves the scale at each such step, "
        "down to 0",
        "The loss scale is not at fault: find what makes the gradients NaN or infinite, beginning with the "
        "layer that is named here. Until then stop the run before the scale reaches 0: after that the first "
        "step with good gradients writes NaN into every weight.",
        """\
import keras


class StopAtScaleFloor(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if float(self.model.optimizer.dynamic_scale) < 1:
            self.model.stop_training = True


callbacks = [StopAtScaleFloor()]  # model.fit(..., callbacks=callbacks)
""",
    ),
    "loss_scale_not_applied": Entry(
        "the loss was not multiplied by the loss scale, but `apply` divides the gradients by it",
        "Take the gradients of `optimizer.scale_loss(loss)`, not of the loss. `apply` undoes the scale.",
        SCALED_STEP,
    ),
    "gradients_unscaled_twice": Entry(
        "the gradients are divided by the loss scale twice: by your loop and again by `apply`",
        "Do not divide by the scale yourself: a LossScaleOptimizer's `apply` does. If you need the true "
        "gradients (for clipping), let the optimizer inside it clip.",
        SCALED_STEP,
    ),
    "gradients_not_unscaled": Entry(
        "the gradients still carry the loss scale: the loss was multiplied by it and nothing divides by it",
        "Divide the gradients by the same scale before `apply`, or let `LossScaleOptimizer` do both.",
        "import keras\n\noptimizer = keras.optimizers.LossScaleOptimizer(optimizer)\n" + SCALED_STEP,
    ),
}
