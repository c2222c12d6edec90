"""Stay: whether the thread that reports is still inside the `fit` in which it began.

Keras calls no hook when Ctrl-C or an exception leaves `fit` from a callback or from the data. A process that
ends says goodbye then; at a live prompt it goes on, and the run would look stalled, later crashed. So
somebody looks now and then, which costs less than a millisecond in five seconds and the training nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from types import CodeType, FrameType, TracebackType
from typing import Protocol

LOOK_EVERY_S = 5.0
HOOKS = "trainvitals.reporter"  # whoever began from there is in a `fit` of Keras
KERAS = ("keras", "tf_keras")

_log = logging.getLogger("trainvitals")


class Stay:
    """One thread's stay in `fit`; holds no frame, for a frame keeps the user's data alive."""

    def __init__(self, thread: int, code: CodeType) -> None:
        self._thread, self._code = thread, code
        self._earlier = id(_last_error())  # of another `fit`, perhaps
        self._was_over = False

    def is_over(self) -> bool:
        """Return whether no frame of the thread is that `fit` any more."""
        frame = sys._current_frames().get(self._thread)
        while frame is not None:
            if frame.f_code is self._code:
                return False
            frame = frame.f_back
        return True

    def is_over_for_good(self) -> bool:
        """Return whether it was over at the last look, too: between two frames a thread may be anywhere."""
        was_over, self._was_over = self._was_over, self.is_over()
        return was_over and self._was_over

    def error(self) -> BaseException | None:
        """Return the exception that ended it, where the prompt has kept it."""
        error = _last_error()
        is_its = error is not None and id(error) != self._earlier and _passed_keras(error.__traceback__)
        return error if is_its else None


def stay_in_fit(frame: FrameType | None) -> Stay | None:
    """Return the stay of a thread with this `frame`; None where no hook of ours was called by a `fit`."""
    is_hook = False
    while frame is not None:
        is_hook |= frame.f_globals.get("__name__") == HOOKS
        if is_hook and frame.f_code.co_name == "fit" and _is_keras(frame):
            return Stay(threading.get_ident(), frame.f_code)
        frame = frame.f_back
    return None


def _last_error() -> BaseException | None:
    """Return what the prompt printed last."""
    error = getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _passed_keras(trace: TracebackType | None) -> bool:
    """Whether an exception came through Keras, which takes the frame of `fit` itself out of the trace."""
    while trace is not None:
        if _is_keras(trace.tb_frame):
            return True
        trace = trace.tb_next
    return False


def _is_keras(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in KERAS


class Staying(Protocol):
    """Whoever wants to be asked now and then whether its stay is over."""

    def look(self) -> None:
        """Look; an exception is logged and ends nothing."""


class Lookout:
    """Asks all that stay, in a thread that lives only while there are some."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._staying: weakref.WeakSet[Staying] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def add(self, one: Staying) -> None:
        """Ask it from now on."""
        if self._process != os.getpid():  # a forked child: the thread is the parent's, and so may the lock be
            self._begin()
        with self._changed:
            self._staying.add(one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trainvitals-lookout", daemon=True)
                self._thread.start()

    def discard(self, one: Staying) -> None:
        """Ask it no more."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._staying.discard(one)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._staying, LOOK_EVERY_S)
                if not self._staying:
                    self._thread = None
                    return
                staying = list(self._staying)
            while staying:
                _look(staying.pop())


def _look(one: Staying) -> None:
    try:
        one.look()
    except Exception:
        _log.debug("cannot tell whether fit was left", exc_info=True)


lookout = Lookout()
