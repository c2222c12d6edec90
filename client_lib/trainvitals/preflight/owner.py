"""Owner: whether the user wrote an operation, or Keras or a package has it inside something of its own.

What is inside a layer or a loss of Keras's is guarded there; only the user's own expressions are judged.
"""

from __future__ import annotations

import os
import re
from types import FrameType

import keras

from trainvitals.autopsy.source import Place

_GUARDED = re.compile(
    r"/keras/(src/)?(layers|losses|metrics|optimizers|regularizers|initializers|constraints)/"
)
_OPERATIONS = re.compile(r"/(keras|tensorflow|numpy|trainvitals)/")
_INSTALLED = re.compile(r"/(site|dist)-packages/")
# A call of these passes from Keras to the user's code, or is the call itself.
_CALLS = ("layers/layer.py", "layers/core/lambda_layer.py", "losses/losses.py", "losses/loss.py")


def is_own(place: Place, frame: FrameType | None) -> bool:
    """Tell whether what runs in `frame` is the user's own expression."""
    if place.layers and not isinstance(place.layers[-1], keras.layers.Layer):
        return True  # a node of a functional model: the user wrote it where the model was made
    if place.line is None:
        return False
    while frame is not None:
        path = frame.f_code.co_filename.replace(os.sep, "/")
        if frame.f_code.co_filename == place.line.file and frame.f_code.co_name == place.line.function:
            return not _INSTALLED.search(path)
        if _GUARDED.search(path) or (_INSTALLED.search(path) and not _OPERATIONS.search(path)):
            return False
        frame = frame.f_back
    return False
