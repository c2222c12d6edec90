"""Where an operation comes from, read off the stack: layers, phase of the step, the user's own line."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from types import CodeType, FrameType
from typing import Literal

from trainvitals.probe.types import Value

Direction = Literal["forward", "backward", "update"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FRAMEWORKS = ("keras", "tf_keras", "tensorflow", "numpy", "ml_dtypes", "absl", "wrapt", "optree", "tree")
_CHECKED_OUT = ("keras", "tf_keras", "tensorflow", "numpy")  # may be used from where they were cloned to
# Of Keras 3, of an operation that is a node of a functional model, and of tf_keras 2.
_LAYER_FILES = ("layers/layer.py", "ops/operation.py", "engine/base_layer.py")
_ENTRY = "run_the_step"  # the function of ours below which everything is the user's step


class _Kind(Enum):
    USER = "the user's own"
    OTHER = "of an installed package that is not a framework"
    FRAMEWORK = "of Keras, TensorFlow, numpy, Python or ours"
    LAYER = "calls a layer"
    OPTIMIZER = "updates the weights"
    GRADIENT = "runs the gradient of one operation"
    TAPE = "runs all gradients of a tape"
    ENTRY = "where the replay began"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the user's."""

    file: str
    line: int
    function: str

    @property
    def code(self) -> str:
        """The text of the line; empty where it cannot be read."""
        return linecache.getline(self.file, self.line).strip()


@dataclass(frozen=True, slots=True)
class Differentiated:
    """What a gradient function was called for: the forward operation's kind, inputs and outputs."""

    kind: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the step an operation ran; `layers` are outermost first."""

    line: Line | None
    layers: tuple[Value, ...]
    direction: Direction


class Stack:
    """Reads places off the stack; remembers what it knows of each function."""

    def __init__(self) -> None:
        self._kinds: dict[CodeType, _Kind] = {}
        self._folders = _folders()
        self._lines: dict[tuple[CodeType, int], Line] = {}

    def place(self, frame: FrameType | None) -> tuple[Place, Differentiated | None]:
        """Return the place of what runs in `frame`, looking no further out than the replayed step.

        With it, of a gradient, what it is the gradient of.
        """
        line: Line | None = None
        other: Line | None = None
        layers: list[Value] = []
        direction: Direction = "forward"
        differentiated = None
        for kind, at in self._outward(frame):
            if kind is _Kind.USER and line is None:
                line = self._line(at)
            elif kind is _Kind.OTHER and other is None:
                other = self._line(at)
            elif kind is _Kind.LAYER:
                layer = at.f_locals.get("self")
                if not layers or layers[-1] is not layer:  # a layer is an operation too
                    layers.append(layer)
            elif kind is _Kind.OPTIMIZER:
                direction = "update"
            elif kind is _Kind.GRADIENT and differentiated is None:
                differentiated = _differentiated(at)
            elif kind is _Kind.TAPE:
                direction = "backward"
                break  # whoever asked for the gradients did not make this one
        layers.reverse()
        return Place(line or other, tuple(layers), direction), differentiated

    def line_of_error(self, error: BaseException | None) -> Line | None:
        """Return the innermost line of the user's that an exception came through."""
        line = None
        trace = None if error is None else error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            kind = self._kinds.get(code) or self._classify(code)
            if kind is _Kind.USER:
                line = Line(code.co_filename, trace.tb_lineno, code.co_name)
            trace = trace.tb_next
        return line

    def _outward(self, frame: FrameType | None) -> Iterator[tuple[_Kind, FrameType]]:
        while frame is not None:
            kind = self._kinds.get(frame.f_code) or self._classify(frame.f_code)
            if kind is _Kind.ENTRY:
                return
            if kind is not _Kind.FRAMEWORK:
                yield kind, frame
            frame = frame.f_back

    def _line(self, frame: FrameType) -> Line:
        key = (frame.f_code, frame.f_lineno)
        if key not in self._lines:
            name = frame.f_code.co_name
            self._lines[key] = Line(frame.f_code.co_filename, frame.f_lineno, name)
        return self._lines[key]

    def _classify(self, code: CodeType) -> _Kind:
        kind = self._kind(code)
        self._kinds[code] = kind
        return kind

    def _kind(self, code: CodeType) -> _Kind:
        path, name = code.co_filename.replace(os.sep, "/"), code.co_name
        if path.startswith(self._folders.own):
            return _Kind.ENTRY if name == _ENTRY else _Kind.FRAMEWORK
        package = self._folders.installed_package(path)
        if package in _FRAMEWORKS:
            return _framework_kind(path, name)
        if package is not None:
            return _Kind.OTHER
        if path.startswith((*self._folders.library, "<frozen", "<__array")):
            return _Kind.FRAMEWORK
        return _Kind.USER


def line_of_error(error: BaseException | None) -> Line | None:
    """Return the innermost line of the user's that an exception came through, below the replay's own."""
    return Stack().line_of_error(error)


def _framework_kind(path: str, name: str) -> _Kind:
    if name == "__call__" and path.endswith(_LAYER_FILES):
        return _Kind.LAYER
    if name == "_gradient_function" and path.endswith("eager/backprop.py"):
        return _Kind.GRADIENT
    if path.endswith("eager/imperative_grad.py"):
        return _Kind.TAPE
    return (
        _Kind.OPTIMIZER if "/optimizers/" in path and not name.startswith("scale_loss") else _Kind.FRAMEWORK
    )


def _differentiated(frame: FrameType) -> Differentiated | None:
    names = frame.f_locals
    kind = names.get("op_name")
    if not isinstance(kind, (str, bytes)):
        return None
    text = kind.decode() if isinstance(kind, bytes) else kind
    return Differentiated(text, tuple(names.get("inputs") or ()), tuple(names.get("outputs") or ()))


@dataclass(frozen=True, slots=True)
class _Folders:
    """Folders of code that is not the user's; each ends with a slash."""

    own: str
    library: tuple[str, ...]
    frameworks: tuple[str, ...]

    def installed_package(self, path: str) -> str | None:
        """Return the package that a file was installed with; None for a file of a project."""
        if path.startswith(self.frameworks):
            return _FRAMEWORKS[0]
        for marker in ("/site-packages/", "/dist-packages/"):
            _, found, inside = path.rpartition(marker)
            if found:
                return inside.split("/", 1)[0]
        return None


def _folders() -> _Folders:
    paths = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")]
    library = [_folder(path) for path in (*paths, *map(os.path.realpath, paths))]
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _CHECKED_OUT]
    frameworks = [
        _folder(os.path.dirname(file)) for file in files if file and os.path.basename(file) == "__init__.py"
    ]
    return _Folders(_folder(_PACKAGE), tuple(dict.fromkeys(library)), tuple(frameworks))


def _folder(path: str) -> str:
    return path.replace(os.sep, "/").rstrip("/") + "/"
