"""The documents name what there is, and what the README tells to type works."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest

from server_process import running_server
from trainvitals import wire
from trainvitals_server.catalogue import CATALOGUE
from trainvitals_server.cli import COMMANDS
from trainvitals_server.config import render_settings
from trainvitals_server.finding import KINDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
TRAINING_TIMEOUT_S = 90
SERIES = (
    *("loss", "grad_norm", "grad_nonfinite", "loss_scale", "skipped", "learning_rate", "optimizer_step"),
    *("step_time_s", "batch_size", "layer_grad_norm", "layer_grad_nonfinite", "weight_nonfinite"),
    *("layer_weight_norm", "layer_update_ratio", "overhead_share", "layer_activation_absmax"),
    *("layer_activation_nonfinite", "layer_dead_share", "layer_saturated_share"),
    *("layer_grad_absmax", "layer_grad_zero_share"),
)


def read(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def first_column(text: str, heading: str) -> set[str]:
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def test_the_page_of_settings_is_the_table_of_settings() -> None:
    assert read("settings.md").endswith(render_settings())


def test_every_kind_of_incident_is_explained() -> None:
    assert first_column(read("incidents.md"), "Kinds of incident") == set(KINDS)


def test_every_series_is_explained() -> None:
    assert first_column(read("incidents.md"), "Series") >= set(SERIES)


def test_every_cause_that_the_server_can_name_is_explained() -> None:
    assert set(CATALOGUE) <= first_column(read("incidents.md"), "Causes")


def test_every_frame_is_explained() -> None:
    named = first_column(read("wire.md"), "From the client") | first_column(
        read("wire.md"), "From the server"
    )
    frames = (*wire.ClientFrame.__args__, *wire.ServerFrame.__args__)
    assert named == {frame.__struct_config__.tag for frame in frames}


@pytest.mark.parametrize(
    "limit", [wire.MAX_ROWS, wire.MAX_COLUMNS, wire.MAX_LAYERS, wire.MAX_NAME_CHARS], ids=str
)
def test_every_limit_of_the_wire_is_told(limit: int) -> None:
    assert f"{limit:,}" in read("wire.md")


def test_every_route_of_the_interface_is_told(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, urllib.request.urlopen(f"{server.url}/openapi.json") as answer:
        paths = json.load(answer)["paths"]
    told = read("api.md")
    assert [path for path in paths if path not in told] == []


def test_links_between_the_documents_lead_somewhere() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_command_in_the_readme_exists() -> None:
    words = set(re.findall(r"^trainvitals (\w+)", "\n".join(blocks("sh")), re.MULTILINE))
    assert "serve" in words
    assert words <= set(COMMANDS)


def test_every_command_is_in_the_readme() -> None:
    assert [name for name in COMMANDS if f"trainvitals {name}" not in README] == []


def test_every_extra_that_the_readme_installs_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"\.\[(\w+)\]", README)) <= set(extras)


def test_every_snippet_of_the_readme_is_python() -> None:
    for snippet in blocks("python"):
        ast.parse(snippet)


@pytest.mark.tensorflow
def test_what_the_first_screen_tells_to_type_makes_a_run_with_every_step(tmp_path: Path) -> None:
    set_up = (
        "import keras, numpy as np\n"
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "x, y = np.ones((320, 2)), np.ones((320, 1))\n"
    )
    with running_server(tmp_path) as server:
        code = set_up + blocks("python")[0].replace("http://127.0.0.1:8765", server.url)
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        subprocess.run(
            [sys.executable, "-c", code],
            env=environ,
            check=True,
            capture_output=True,
            timeout=TRAINING_TIMEOUT_S,
        )
        with urllib.request.urlopen(f"{server.url}/api/v1/runs") as answer:
            (run,) = json.load(answer)["runs"]
    assert (run["project"], run["name"], run["state"], run["last_step"]) == (
        "resnet",
        "lr 3e-4",
        "finished",
        9,
    )
