"""Every test that the page about ways to train names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parent / "docs" / "ways-to-train.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:client|compat)/\w+\.py)::(\w+)(?:\[([^\]`]+)\])?`", PAGE)))
# A case may be one of a table that lies beside the test.
TABLES = {"client/test_ways_fit.py": HERE / "ways.py"}


def functions_of(path: Path) -> set[str]:
    return {one.name for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.FunctionDef)}


def words_of(path: Path) -> set[str]:
    """Return the texts in a module, by some of which its cases are named."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def test_every_test_that_is_named_exists() -> None:
    assert len(NAMED) > 50
    missing = [f"{file}::{name}" for file, name, _ in NAMED if name not in functions_of(HERE / file)]
    assert missing == []


def test_every_case_that_is_named_exists() -> None:
    cases = [(file, case) for file, _, case in NAMED if case]
    known = {file: words_of(HERE / file) | words_of(TABLES.get(file, HERE / file)) for file, _ in cases}
    unknown = [
        case for file, case in cases if case not in known[file] and not {*case.split("-")} <= known[file]
    ]
    assert len(cases) > 20
    assert unknown == []


def test_every_way_of_the_table_beside_the_tests_is_on_the_page() -> None:
    tree = ast.parse((HERE / "ways.py").read_text())
    (table,) = [
        one.value for one in tree.body if isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == "WAYS"
    ]
    assert isinstance(table, ast.Dict)
    names = {key.value for key in table.keys if isinstance(key, ast.Constant)}
    assert names - {case for _, _, case in NAMED} == set()


def test_every_fault_is_on_the_page() -> None:
    faults = set(re.findall(r"^\| `(\w+)`", PAGE.split("## Whatever happens")[1], re.MULTILINE))
    assert {"no_server", "disk_full", "exit_in_a_flush"} < faults
    assert faults <= words_of(HERE / "client" / "test_faults.py")
