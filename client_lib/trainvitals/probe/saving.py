"""Learn of the checkpoints that callbacks and the user write with `model.save` and `model.save_weights`.

An attribute of the instance gets in between; nothing that is saved or copied holds it. Orbax,
`tf.train.Checkpoint` and `keras.saving.save_model` go other ways, unseen.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from trainvitals.probe.taps import attribute
from trainvitals.probe.types import Model, Value

# Given the path before a checkpoint is written; entered around the writing.
Watch = Callable[[str], AbstractContextManager[None]]


@contextmanager
def watched_saves(model: Model, watch: Watch) -> Iterator[None]:
    """Let `watch` surround each writing of a checkpoint."""
    with ExitStack() as stack:
        for name in ("save", "save_weights"):
            stack.enter_context(attribute(model, name, _watched(getattr(model, name), watch)))
        yield


def _watched(save: Callable[..., Value], watch: Watch) -> Callable[..., Value]:
    @functools.wraps(save)
    def watched(*args: Value, **kwargs: Value) -> Value:
        path = args[0] if args else kwargs.get("filepath")
        if not isinstance(path, str | os.PathLike):  # into memory: nothing to restart from
            return save(*args, **kwargs)
        with watch(str(os.fspath(path))):
            return save(*args, **kwargs)

    return watched
