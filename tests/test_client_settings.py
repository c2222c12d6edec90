"""The table of the reporter's settings has every argument, every variable and the caps of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from trainvitals.backlog import MEMORY_BYTES
from trainvitals.identity import DEFAULT_URL
from trainvitals.spool import MAX_BYTES, default_directory

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "client_lib" / "trainvitals"
SECTION = (
    (ROOT / "docs" / "settings.md").read_text().split("## Of the reporter\n")[1].split("## Of the server")[0]
)
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]] for line in SECTION.splitlines() if line[:3] == "| `"
]
MIB = 1 << 20


def arguments(file: str, name: str) -> dict[str, str]:
    """Return the arguments of a class of ours with their defaults, as they are written."""
    tree = ast.parse((CLIENT / file).read_text())
    (made,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    (init,) = [node for node in made.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    defaults = [ast.unparse(default) if default else "" for default in init.args.kw_defaults]
    named = dict(zip([one.arg for one in init.args.kwonlyargs], defaults, strict=True))
    return {"url": "None", **named}


def number(file: str, name: str) -> int:
    """Return a constant of a module that is not imported here: it brings TensorFlow."""
    (value,) = [
        node.value
        for node in ast.parse((CLIENT / file).read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    return int(eval(ast.unparse(value)))


OF_FIT, OF_LOOP = arguments("reporter.py", "HealthReporter"), arguments("loop.py", "Reporter")


def test_every_argument_is_in_the_table_and_no_other() -> None:
    assert {row[0].strip("`") for row in ROWS} == OF_FIT.keys() | OF_LOOP.keys()


def test_what_only_one_of_the_two_takes_is_marked() -> None:
    marks = {row[0].strip("`"): re.findall(r"`(\w+)` only", row[3]) for row in ROWS}
    assert {name for name, said in marks.items() if said == ["HealthReporter"]} == OF_FIT.keys() - OF_LOOP
    assert {name for name, said in marks.items() if said == ["Reporter"]} == OF_LOOP.keys() - OF_FIT


def test_defaults_that_are_written_as_code_are_those_of_the_code() -> None:
    told = {row[0].strip("`"): row[2].strip("`") for row in ROWS if row[2].startswith("`")}
    assert told.pop("url") == DEFAULT_URL
    assert Path(told.pop("spool_dir")).expanduser() == default_directory({"HOME": str(Path.home())}, "linux")
    assert told.pop("overhead_budget") == "0.01"
    assert told == {name: (OF_FIT | OF_LOOP)[name].replace("'", '"') for name in told}


def test_every_environment_variable_of_the_client_is_told() -> None:
    code = "".join(path.read_text() for path in CLIENT.rglob("*.py"))
    used = set(re.findall(r"environ(?:\.get\(|\[)\"(TRAINVITALS_\w+)\"", code))
    assert used == set(re.findall(r"^\| `\w+` \| `(TRAINVITALS_\w+)`", SECTION, re.MULTILINE))


@pytest.mark.parametrize(
    ("cap", "text"),
    [
        (MEMORY_BYTES // MIB, "{} MiB of unsent rows in memory"),
        (MAX_BYTES // MIB, "{} MiB on disk"),
        (number("autopsy/bundle.py", "MAX_BUNDLES"), "{} bundles"),
        (number("autopsy/bundle.py", "MAX_BYTES") // MIB, "each of {} MiB"),
        (number("autopsy/bundle.py", "MIN_FREE_BYTES") >> 30, "{} GiB of the disk"),
    ],
)
def test_what_is_kept_is_bounded_as_it_is_told(cap: int, text: str) -> None:
    assert text.format(cap) in SECTION.replace("\n", " ")
