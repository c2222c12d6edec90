"""Whose line it is: the user's own before an installed package's, and never a framework's."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest
import tensorflow as tf

from scenes import compiled, dense, line_of, loop_report, numbers, report_of
from trainvitals.autopsy.report import Report
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow

PACKAGE = """
import keras
import tensorflow as tf

class Root(keras.layers.Layer):
    def call(self, x):
        return tf.sqrt(x)

def root(x):
    return tf.sqrt(x)
"""
IN_CLASS, IN_FUNCTION = 7, 10


def imported(path: Path) -> ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PACKAGE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def place(report: Report) -> tuple[str, int, str]:
    return report.file, report.line, report.function


def test_a_layer_of_an_installed_package_is_named_where_no_line_is_the_users(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "site-packages" / "roots" / "layers.py"
    model = compiled(dense(imported(path).Root(), keras.layers.Dense(1)))
    assert place(report_of(model, numbers(4, 4), numbers(4, 1))) == (str(path), IN_CLASS, "call")


def test_the_users_line_that_called_the_package_goes_before_the_packages_own(tmp_path: Path) -> None:
    module = imported(tmp_path / "lib" / "site-packages" / "roots" / "functions.py")
    ours = keras.layers.Lambda(lambda x: module.root(x))  # calls the package
    report = report_of(compiled(dense(ours, keras.layers.Dense(1))), numbers(4, 4), numbers(4, 1))
    assert place(report) == (__file__, line_of("calls the package"), "<lambda>")


def test_a_module_of_the_users_project_is_the_users_wherever_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "keras" / "layers" / "tensorflow.py"
    model = compiled(dense(imported(path).Root(), keras.layers.Dense(1)))
    assert place(report_of(model, numbers(4, 4), numbers(4, 1))) == (str(path), IN_CLASS, "call")


def test_the_standard_library_between_the_user_and_the_operation_is_not_named() -> None:
    import functools

    def run(batch: Value) -> Value:
        return functools.reduce(
            lambda x, _: tf.math.log(x),  # inside of reduce
            range(3),
            batch[0],
        )

    report = loop_report(run, (np.full((4, 2), 2.0, "float32"),), [])
    assert place(report) == (__file__, line_of("inside of reduce"), "<lambda>")


def test_a_cell_of_a_notebook_is_the_users_and_its_code_is_shown() -> None:
    import linecache

    source = "import tensorflow as tf\ndef run(batch):\n    return tf.math.log(batch[0])\n"
    name = "<ipython-input-3-0a1b>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict[str, Value] = {}
    exec(compile(source, name, "exec"), names)
    report = loop_report(names["run"], (np.zeros((4, 2), "float32"),), [])
    assert place(report) == (name, 3, "run")
    assert report.code == "return tf.math.log(batch[0])"


def test_the_line_from_which_a_step_raised_is_named() -> None:
    embedding = tf.Variable(numbers(3, 2))

    def run(batch: Value) -> Value:
        return tf.reduce_mean(tf.gather(embedding, batch[0]))  # raises

    report = loop_report(run, (np.array([1, 5]),), [embedding])
    assert (report.found, report.samples) == ("input", (1,))
    assert place(report) == (__file__, line_of("raises"), "run")
