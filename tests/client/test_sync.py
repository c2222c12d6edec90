from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from client_rows import hello, steps, told
from server_process import running_server
from trainvitals import wire
from trainvitals.backlog import frame_of
from trainvitals.owner import claim
from trainvitals.spool import Spool, session_directory
from trainvitals.sync import upload
from trainvitals.transport import MemoryTransport
from trainvitals_server.cli import main
from wire_server import Store, websocket_server

NO_SERVER = "http://127.0.0.1:9"


def leave(directory: Path, session_id: str, first: int, last: int, url: str = "") -> Path:
    """Leave what a killed reporter leaves: frames first .. last, unacknowledged."""
    head = [wire.encode(hello(session_id=session_id)), wire.encode(wire.Layout(seq=1, layout_id=1))]
    folder = session_directory(directory, "run", session_id)
    spool = Spool(folder, lambda: head, url=url, segment_bytes=400)
    for seq in range(first, last + 1):
        spool.append([frame_of(steps(seq))])
    spool.close()
    return folder


def sync(directory: Path, url: str) -> int:
    return main(["sync", str(directory), "--url", url])


def test_everything_goes_to_the_server_and_leaves_the_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store()
    for session_id in ("a", "b"):
        leave(tmp_path, session_id, 1, 30)
    with websocket_server(store) as url:
        assert sync(tmp_path, url) == 0
        assert capsys.readouterr().out.splitlines() == [
            f"run run, session {name}: 30 frames sent, 0 already there -> {url}" for name in "ab"
        ]
        assert sync(tmp_path, url) == 0
    assert capsys.readouterr().out == f"nothing to send in {tmp_path}\n"
    assert told(store.frames["a"]) == told(store.frames["b"]) == list(range(1, 31))
    assert all(said.late for said in store.hellos)
    assert list((tmp_path / "sessions").rglob("*.frames")) == []


def test_each_session_goes_to_the_server_that_it_was_made_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINVITALS_URL", NO_SERVER)
    first, second = Store(), Store()
    with websocket_server(first) as one, websocket_server(second) as two:
        leave(tmp_path, "a", 1, 3, one)
        leave(tmp_path, "b", 1, 3, two)
        assert main(["sync", str(tmp_path)]) == 0
        leave(tmp_path, "c", 1, 3, one)
        assert sync(tmp_path, two) == 0
    assert [line.rpartition(" -> ")[2] for line in capsys.readouterr().out.splitlines()] == [one, two, two]
    assert (list(first.frames), list(second.frames)) == (["a"], ["b", "c"])


def test_a_directory_that_is_not_there_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert main(["sync", str(missing)]) == 2
    assert f"there is no directory {missing}" in capsys.readouterr().err


def test_what_the_server_has_already_is_not_sent_again(tmp_path: Path) -> None:
    store = Store()
    store.frames["a"] = [steps(seq) for seq in range(1, 11)]
    report = upload(leave(tmp_path, "a", 6, 30), MemoryTransport(store.handler()))
    assert str(report) == "run run, session a: 20 frames sent, 5 already there"
    assert told(store.frames["a"]) == list(range(1, 31))


def test_a_server_that_never_saw_the_beginning_gets_the_layout_and_is_told_of_the_rest(
    tmp_path: Path,
) -> None:
    store = Store()
    report = upload(leave(tmp_path, "a", 6, 10), MemoryTransport(store.handler()))
    assert report.is_done
    assert report.lost == {"not_kept": 4}
    layout, gap, *rest = store.frames["a"]
    assert isinstance(layout, wire.Layout)
    assert isinstance(gap, wire.Gap)
    assert (gap.seq, gap.last_seq) == (2, 5)
    assert told(rest) == [6, 7, 8, 9, 10]


def test_a_metric_that_is_named_by_its_step_costs_no_series_that_the_server_takes(tmp_path: Path) -> None:
    head = [wire.encode(hello(session_id="a"))]
    spool = Spool(session_directory(tmp_path / "spool", "run", "a"), lambda: head)
    cells = wire.Column.pack([1.0])
    for seq in range(1, 101):
        columns = {"loss": cells, "accuracy_running": cells, f"metric_{seq}": cells}
        spool.append([frame_of(wire.Steps(seq=seq, first_step=seq, count=1, columns=columns))])
    spool.close()
    with running_server(tmp_path / "data", "--max-series", "20") as server:
        assert sync(tmp_path / "spool", server.url) == 0
        address = f"{server.url}/api/v1/runs/run/export.csv?names=accuracy_running"
        with urllib.request.urlopen(address, timeout=10) as answer:
            table = answer.read().decode().splitlines()
    assert [row.split(",")[2] for row in table[1:]] == ["1.0"] * 100


def test_damage_is_declared_and_the_rest_arrives(tmp_path: Path) -> None:
    folder = leave(tmp_path, "a", 1, 30)
    first = min(folder.glob("0*.frames"))
    data = bytearray(first.read_bytes())
    data[-10] ^= 1
    first.write_bytes(data)
    store = Store()
    report = upload(folder, MemoryTransport(store.handler()))
    assert report.lost == {"spool_corrupt": 1}
    assert len(told(store.frames["a"])) == 29
    assert not folder.exists()


def test_without_a_server_nothing_is_deleted_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = leave(tmp_path, "a", 1, 5)
    assert sync(tmp_path, NO_SERVER) == 1
    assert "0 frames sent, 0 already there, 5 left: [Errno" in capsys.readouterr().out
    assert len(list(folder.glob("0*.frames"))) >= 1
    store = Store()
    assert upload(folder, MemoryTransport(store.handler())).is_done


def test_a_server_that_goes_away_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    folder = leave(tmp_path, "a", 1, 40)
    store = Store()
    store.refuse = lambda frame: (
        wire.Reject(code="unauthorized", message="revoked")
        if isinstance(frame, wire.Steps) and frame.seq > 20
        else None
    )
    report = upload(folder, MemoryTransport(store.handler()))
    assert (report.sent, report.left, report.trouble) == (20, 20, "revoked")
    store.refuse = lambda frame: None
    assert upload(folder, MemoryTransport(store.handler())).is_done
    assert told(store.frames["a"]) == list(range(1, 41))


def test_a_session_that_still_runs_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, "dead", 1, 3)
    alive = leave(tmp_path, "alive", 1, 3)
    claim(alive)
    store = Store()
    with websocket_server(store) as url:
        assert sync(tmp_path, url) == 1
    out = capsys.readouterr().out
    assert f"{alive.name}: " in out
    assert "skipped, a running process still writes there" in out
    assert list(store.frames) == ["dead"]
    assert alive.exists()


def test_a_folder_that_cannot_be_read_is_reported_and_kept(tmp_path: Path) -> None:
    folder = leave(tmp_path, "a", 1, 3)
    (folder / "head.frames").write_bytes(b"junk")
    report = upload(folder, MemoryTransport(Store().handler()))
    assert not report.is_done
    assert "cannot be read" in str(report)
    assert folder.exists()


def test_an_address_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sync(tmp_path, "nonsense") == 2
    assert "is no server address" in capsys.readouterr().err


def test_a_real_server_stores_it_once_however_often_it_is_sent(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        for _ in range(2):
            leave(tmp_path / "spool", "a", 1, 30)
            assert sync(tmp_path / "spool", server.url) == 0


def test_what_went_wrong_while_the_server_was_away_is_shown_as_late(tmp_path: Path) -> None:
    loss = np.append(np.ones(100), np.full(5, np.nan))
    columns = {"loss": wire.Column.pack(loss), "grad_norm": wire.Column.pack(loss)}
    with running_server(tmp_path / "data") as server:
        head = [wire.encode(hello(session_id="a"))]
        spool = Spool(session_directory(tmp_path / "spool", "run", "a"), lambda: head, url=server.url)
        spool.append([frame_of(wire.Steps(seq=1, first_step=0, count=len(loss), columns=columns))])
        spool.close()
        assert main(["sync", str(tmp_path / "spool")]) == 0
        found: list[dict[str, object]] = []
        while not found:
            with urllib.request.urlopen(f"{server.url}/api/v1/runs/run/incidents", timeout=10) as answer:
                found = json.load(answer)["incidents"]
        with urllib.request.urlopen(f"{server.url}/api/v1/runs/run", timeout=10) as answer:
            run = json.load(answer)
    assert [(one["kind"], one["onset_step"], one["late"]) for one in found] == [("sudden_nan", 100, True)]
    assert run["worst_incident"]["kind"] == "sudden_nan"
