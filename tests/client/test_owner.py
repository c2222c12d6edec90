from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trainvitals.owner import claim, is_owned, release


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_folder_has_one_owner_until_it_is_released(tmp_path: Path) -> None:
    assert not is_owned(tmp_path)
    assert claim(tmp_path)
    assert is_owned(tmp_path)
    assert not claim(tmp_path)
    release(tmp_path)
    release(tmp_path)
    assert claim(tmp_path)


def test_what_a_dead_process_owned_can_be_claimed(tmp_path: Path) -> None:
    claim(tmp_path)
    host, _, started = (tmp_path / "owner").read_text().split()
    (tmp_path / "owner").write_text(f"{host} {dead_pid()} {started}")
    assert not is_owned(tmp_path)
    assert claim(tmp_path)


def test_a_process_id_that_was_given_out_again_is_no_owner(tmp_path: Path) -> None:
    claim(tmp_path)
    host, pid, _ = (tmp_path / "owner").read_text().split()
    (tmp_path / "owner").write_text(f"{host} {pid} 1")
    assert not is_owned(tmp_path)


def test_an_owner_on_another_machine_is_taken_to_be_alive(tmp_path: Path) -> None:
    (tmp_path / "owner").write_text(f"elsewhere {dead_pid()} 1")
    assert not claim(tmp_path)


def test_an_owner_that_was_cut_off_while_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "owner").write_text("")
    assert claim(tmp_path)
