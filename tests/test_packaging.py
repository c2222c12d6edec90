"""What is shipped: the wheel, the public names, what an import does, the container file."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import trainvitals
from server_process import running_server
from trainvitals_server.config import SETTINGS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SERVER_ONLY = (
    "fastapi",
    "starlette",
    "uvicorn",
    "pydantic",
    "httpx",
    "plotly",
    "rich",
    "tensorflow",
    "keras",
)
# Run in a fresh interpreter where what only the extras bring cannot be imported.
BASE_INSTALL = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {SERVER_ONLY}:
            raise ModuleNotFoundError(f'No module named {{name}}', name=name.split('.')[0])
sys.meta_path.insert(0, Absent())
from trainvitals_server.cli import main
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_holds_both_packages_the_page_and_the_migrations(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    web = {
        f"trainvitals_server/{path.relative_to(ROOT)}" for path in (ROOT / "web").rglob("*") if path.is_file()
    }
    migrations = {
        f"trainvitals_server/store/migrations/{path.name}"
        for path in (ROOT / "server/trainvitals_server/store/migrations").glob("*.sql")
    }
    expected = {
        "trainvitals/wire.py",
        "trainvitals/py.typed",
        "trainvitals_server/py.typed",
        *web,
        *migrations,
    }
    assert "trainvitals_server/web/index.html" in expected
    assert expected - names == set()


def test_the_wheel_holds_nothing_beside_the_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"trainvitals", "trainvitals_server", f"trainvitals-{trainvitals.__version__}.dist-info"}


def test_the_base_install_is_the_client_alone(wheel: zipfile.ZipFile) -> None:
    metadata = message_from_bytes(
        wheel.read(f"trainvitals-{trainvitals.__version__}.dist-info/METADATA")
    ).get_all("Requires-Dist", [])
    base = {re.split(r"[<>=;\[ ]", line)[0] for line in metadata if "extra ==" not in line}
    assert base == {"msgspec", "numpy", "websockets"}
    assert not any("tensorflow" in line for line in metadata if "extra == 'server'" in line)


def test_the_version_is_the_same_in_the_package_and_in_the_project() -> None:
    assert PROJECT["project"]["version"] == trainvitals.__version__
    assert f"## {trainvitals.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_public_names_are_these() -> None:
    assert sorted(trainvitals.__all__) == ["HealthReporter", "Reporter", "__version__"]


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = trainvitals.Nothing


def test_importing_the_package_starts_no_thread_and_imports_nothing_heavy() -> None:
    code = (
        "import json, sys, threading, trainvitals, trainvitals_server, trainvitals_server.cli\n"
        "print(json.dumps([threading.active_count(), sorted(sys.modules)]))"
    )
    threads, modules = json.loads(run_python(code).stdout)
    assert threads == 1
    assert {"numpy", "msgspec", "asyncio", *SERVER_ONLY} & set(modules) == set()


def test_importing_the_wire_and_the_sender_imports_no_framework() -> None:
    code = (
        "import json, sys, threading, trainvitals.wire, trainvitals.sender, trainvitals.sync\n"
        "print(json.dumps([threading.active_count(), sorted(sys.modules)]))"
    )
    threads, modules = json.loads(run_python(code).stdout)
    assert threads == 1
    assert set(SERVER_ONLY) & set(modules) == set()


@pytest.mark.parametrize("command", ["check", "sync"])
def test_the_base_install_can_check_and_sync(command: str) -> None:
    result = run_python(BASE_INSTALL + "sys.exit(main(sys.argv[1:]))", command, "--help")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(("command", "extra"), [("serve", "server"), ("demo", "demo")])
def test_a_command_that_needs_an_extra_names_it(command: str, extra: str) -> None:
    result = run_python(BASE_INSTALL + "sys.exit(main(sys.argv[1:]))", command, "--help")
    if result.returncode:  # `serve --help` answers without the extra, which is better still
        assert result.returncode == 2
        assert f"pip install 'trainvitals[{extra}]'" in result.stderr


def instructions(name: str) -> list[str]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [line[len(name) :].strip() for line in text.splitlines() if line.startswith(name + " ")]


def test_the_image_gets_every_file_that_the_build_reads() -> None:
    copied = {word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]}
    needed = {"pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "web"}
    needed |= {
        folder.split("/")[0] for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    }
    assert copied == needed
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed == needed


def test_the_image_runs_the_server_as_a_user_without_rights() -> None:
    assert json.loads(instructions("ENTRYPOINT")[0] + "") == ["trainvitals"]
    assert json.loads(instructions("CMD")[0]) == ["serve"]
    assert instructions("USER") == ["trainvitals"]
    assert instructions("VOLUME") == ["/data"]
    assert len(instructions("FROM")) == 2


def test_the_image_installs_no_tensorflow() -> None:
    assert "'.[server]'" in " ".join(instructions("RUN"))
    assert "demo" not in " ".join(instructions("RUN"))


def test_the_image_sets_only_settings_that_exist() -> None:
    given = set(re.findall(r"TRAINVITALS_SERVER_\w+(?==)", " ".join(instructions("ENV"))))
    assert given == {"TRAINVITALS_SERVER_HOST", "TRAINVITALS_SERVER_PORT", "TRAINVITALS_SERVER_DATA"}
    assert given <= {setting.variable for setting in SETTINGS}


def test_the_health_check_of_the_image_tells_a_live_server_from_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = json.loads(re.search(r"CMD (\[.*\])", instructions("HEALTHCHECK")[0]).group(1))  # type: ignore[union-attr]
    assert command[:2] == ["python", "-c"]
    with running_server(tmp_path) as server:
        monkeypatch.setenv("TRAINVITALS_SERVER_PORT", server.url.rsplit(":", 1)[1])
        assert run_python(command[2]).returncode == 0
    assert run_python(command[2]).returncode == 1


def test_scripts_are_executable_and_parse() -> None:
    for name in ("test", "check", "demo", "bench"):
        path = ROOT / "scripts" / name
        assert path.stat().st_mode & 0o111
        assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    assert "scripts/test" in (ROOT / ".ci/run").read_text()


def test_the_page_of_an_installed_server_is_the_one_of_the_checkout(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, urllib.request.urlopen(f"{server.url}/") as answer:
        assert answer.read() == (ROOT / "web/index.html").read_bytes()


def test_every_module_says_what_it_is_for() -> None:
    modules = [path for root in ("client_lib", "server") for path in (ROOT / root).rglob("*.py")]
    silent = [path.name for path in modules if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []
