from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import httpx2 as httpx
import numpy as np
import pytest

from client_frames import Client, answers, hello, packet, steps
from server_process import ServerProcess, running_server
from trainvitals import wire
from trainvitals_server.ingest import Conversation
from trainvitals_server.pipeline import Pipeline

CAP = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("data"), "--max-series", str(CAP)) as running:
        yield running


def stored(server: ServerProcess, run_id: str) -> list[int]:
    """Return the seqs that the database has of a run, its Hello aside."""
    with sqlite3.connect(server.data / "trainvitals.db") as connection:
        rows = connection.execute(
            "SELECT seq FROM frame WHERE run_id = ? AND seq > 0 ORDER BY seq", (run_id,)
        )
        found = [seq for (seq,) in rows]
    connection.close()
    return found


def post(server: ServerProcess, *frames: wire.ClientFrame | bytes) -> list[wire.ServerFrame]:
    response = httpx.post(server.url + "/api/v1/ingest", content=packet(frames))
    assert response.status_code == 200, response.text
    return answers(response.content)


def test_hello_is_welcomed_with_what_is_committed_and_where_to_look(server: ServerProcess) -> None:
    with Client(server.websocket_url) as client:
        url = f"{server.url}/runs/welcome%20%26%20me"
        assert client.ask(hello("welcome & me")) == wire.Welcome(acked_seq=0, dashboard_url=url)
        client.send(steps(1, 0, [1.0]))
        client.wait_for_ack(1)
    with Client(server.websocket_url) as client:
        assert client.ask(hello("welcome & me")) == wire.Welcome(acked_seq=1, dashboard_url=url)


def test_a_frame_that_was_acked_is_in_the_database_with_its_very_bytes(server: ServerProcess) -> None:
    frame = steps(1, 0, [np.nan, np.inf, -np.inf, 1e39])
    with Client(server.websocket_url) as client:
        client.send(hello("bytes"), frame)
        assert isinstance(client.receive(), wire.Welcome)
        client.wait_for_ack(1)
    with sqlite3.connect(server.data / "trainvitals.db") as connection:
        row = connection.execute("SELECT payload FROM frame WHERE run_id = 'bytes' AND seq = 1").fetchone()
    connection.close()
    assert row == (wire.encode(frame),)


def test_post_and_websocket_are_one_stream(server: ServerProcess) -> None:
    assert post(server, hello("both"), steps(1, 0, [1.0]))[-1] == wire.Ack(acked_seq=1)
    with Client(server.websocket_url) as client:
        client.send(hello("both"), steps(2, 1, [1.0]))
        client.receive()
        client.wait_for_ack(2)
    assert post(server, hello("both"), steps(2, 1, [1.0]), steps(3, 2, [1.0]))[-1] == wire.Ack(acked_seq=3)
    assert stored(server, "both") == [1, 2, 3]


def test_a_duplicate_is_acked_and_stored_once(server: ServerProcess) -> None:
    with Client(server.websocket_url) as client:
        client.ask(hello("twice"))
        assert client.ask(steps(1, 0, [1.0])) == wire.Ack(acked_seq=1)
        assert client.ask(steps(1, 0, [1.0])) == wire.Ack(acked_seq=1)
    assert stored(server, "twice") == [1]


def test_a_jump_is_answered_with_the_seq_expected(server: ServerProcess) -> None:
    *_, ack, reject = post(server, hello("jump"), steps(1, 0, [1.0]), steps(5, 4, [1.0]), steps(6, 5, [1.0]))
    assert ack == wire.Ack(acked_seq=1)
    assert isinstance(reject, wire.Reject)
    assert (reject.code, reject.seq, reject.expected_seq) == ("seq_jump", 5, 2)
    assert stored(server, "jump") == [1]


def with_layers(seq: int, cells: int) -> wire.Steps:
    column = wire.Column.pack(np.zeros(cells))
    layers = {"layer_grad_norm": column}
    return wire.Steps(seq=seq, first_step=0, count=2, layout_id=1, layer_columns=layers)


@pytest.mark.parametrize(
    ("frame", "code", "seq"),
    [
        pytest.param(b"\x00", "malformed", None, id="no message at all"),
        pytest.param(b"\x81\xa1t\xa5other", "malformed", None, id="an unknown kind of message"),
        pytest.param(wire.encode(wire.Ack(acked_seq=1)), "malformed", None, id="a server's message"),
        pytest.param(wire.encode(steps(1, 0, [1.0]))[:-1], "malformed", None, id="cut off"),
        pytest.param(steps(1, -1, [1.0]), "malformed", 1, id="a negative step"),
        pytest.param(steps(1, 0, [1.0], other=[1.0, 2.0]), "malformed", 1, id="columns of two lengths"),
        pytest.param(with_layers(1, 4), "malformed", 1, id="layer columns before any layout"),
        pytest.param(steps(1, 0, np.zeros(wire.MAX_ROWS + 1)), "too_large", 1, id="too many rows"),
        pytest.param(steps(1, 0, [1.0], **{"x" * 201: [1.0]}), "too_large", 1, id="a long series name"),
        pytest.param(b"\x00" * (wire.MAX_FRAME_BYTES + 1), "too_large", None, id="too many bytes"),
        pytest.param(
            steps(1, 0, [1.0], a=[1.0], b=[1.0], c=[1.0], d=[1.0]), "series_cap", 1, id="too many series"
        ),
    ],
)
def test_a_frame_that_cannot_be_taken_is_named_stored_nowhere_and_hurts_nobody(
    server: ServerProcess, frame: wire.ClientFrame | bytes, code: str, seq: int | None
) -> None:
    run_id = f"bad {code} {seq} {hash(frame if isinstance(frame, bytes) else wire.encode(frame))}"
    with Client(server.websocket_url) as other, Client(server.websocket_url) as client:
        other.ask(hello(run_id + " neighbour"))
        client.ask(hello(run_id))
        client.send(frame)
        answer = client.receive()
        if answer == wire.Ack(acked_seq=0):
            answer = client.receive()
        assert isinstance(answer, wire.Reject)
        assert (answer.code, answer.seq) == (code, seq)
        assert stored(server, run_id) == []
        assert client.ask(steps(1, 0, [1.0])) == wire.Ack(acked_seq=1), "the connection goes on"
        assert other.ask(steps(1, 0, [1.0])) == wire.Ack(acked_seq=1)


def test_layer_columns_must_fit_the_layout_they_name(server: ServerProcess) -> None:
    layout = wire.Layout(seq=1, layout_id=1, layers=[wire.Layer(name=name) for name in "abc"])
    *_, reject = post(server, hello("layers"), layout, with_layers(2, 4))
    assert isinstance(reject, wire.Reject)
    assert (reject.code, reject.seq) == ("malformed", 2)
    # In another request, so that the layout comes from the database.
    assert post(server, hello("layers"), with_layers(2, 6))[-1] == wire.Ack(acked_seq=2)


@pytest.mark.parametrize("first", [steps(1, 0, [1.0]), wire.Heartbeat(next_within_s=1.0)])
def test_whoever_does_not_say_hello_first_is_told_so(server: ServerProcess, first: wire.ClientFrame) -> None:
    with Client(server.websocket_url) as client:
        answer = client.ask(first)
    assert isinstance(answer, wire.Reject)
    assert (answer.code, answer.message) == ("malformed", "the first frame must be a Hello")


def test_another_protocol_version_is_refused_and_opens_no_run(server: ServerProcess) -> None:
    with Client(server.websocket_url) as client:
        answer = client.ask(hello("version", protocol=2))
    assert isinstance(answer, wire.Reject)
    assert answer.code == "protocol"
    assert "2" in answer.message
    response = httpx.patch(f"{server.url}/api/v1/runs/version", json={})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"\x05", 400, "bad_request"),
        (b"\x05\x00\x00\x00abc", 400, "bad_request"),
        (b"\xff\xff\xff\xff", 413, "too_large"),
        (b"\x00" * (wire.MAX_PACKET_BYTES + 1), 413, "too_large"),
    ],
)
def test_a_body_that_is_no_packet_gets_the_one_error_shape(
    server: ServerProcess, body: bytes, status: int, code: str
) -> None:
    response = httpx.post(server.url + "/api/v1/ingest", content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.json()["error"]["message"]


def test_a_stop_reaches_a_websocket_at_once_and_a_post_in_its_answer(server: ServerProcess) -> None:
    command = wire.Command(name="stop", reason="it burns")
    with Client(server.websocket_url) as client:
        client.ask(hello("stop"))
        response = httpx.post(f"{server.url}/api/v1/runs/stop/stop", json={"reason": "it burns"})
        assert response.status_code == 202
        assert client.receive() == command
    assert command in post(server, hello("stop"))
    post(server, hello("stop"), wire.Bye(seq=1, status="stopped"))
    assert command not in post(server, hello("stop"))


def test_a_run_can_be_renamed_and_deleted_and_comes_back_when_it_still_lives(server: ServerProcess) -> None:
    run = f"{server.url}/api/v1/runs/mine"
    with Client(server.websocket_url) as client:
        client.ask(hello("mine"))
        client.ask(steps(1, 0, [1.0]))
        patched = httpx.patch(run, json={"name": "<b>😀</b>\n", "tags": ["a"], "notes": "x\ny"}).json()
        assert (patched["name"], patched["tags"], patched["notes"]) == ("<b>😀</b> ", ["a"], "x\ny")
        assert httpx.delete(run).status_code == 204
        assert httpx.delete(run).status_code == 404
        client.send(steps(2, 1, [1.0]))
        assert client.closing_code() == 1012
    with Client(server.websocket_url) as client:
        assert isinstance(client.ask(hello("mine")), wire.Welcome)
        gap = wire.Gap(seq=1, last_seq=1, reason="spool_full")
        client.send(gap, steps(2, 1, [1.0]))
        client.wait_for_ack(2)


@pytest.mark.parametrize("body", [{"name": "x" * 201}, {"state": "fine"}, {"tags": ["x"] * 33}])
def test_a_patch_out_of_bounds_is_refused(server: ServerProcess, body: dict[str, object]) -> None:
    post(server, hello("patch"))
    response = httpx.patch(f"{server.url}/api/v1/runs/patch", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "bad_request")


def test_many_clients_at_once_get_all_of_theirs_stored(server: ServerProcess) -> None:
    clients, frames = 8, 50

    def report(number: int) -> list[int]:
        with Client(server.websocket_url) as client:
            client.ask(hello(f"crowd {number}"))
            client.send(*(steps(seq, 4 * seq, [1.0, 2.0, 3.0, 4.0]) for seq in range(1, frames + 1)))
            client.wait_for_ack(frames)
        return stored(server, f"crowd {number}")

    with ThreadPoolExecutor(clients) as pool:
        for seqs in pool.map(report, range(clients)):
            assert seqs == list(range(1, frames + 1))


def test_what_came_in_before_the_client_hung_up_is_stored(server: ServerProcess) -> None:
    with Client(server.websocket_url) as client:
        client.ask(hello("short"))
        client.send(*(steps(seq, seq, [1.0]) for seq in range(1, 31)))
    acked, tries = 0, 0
    while acked < 30:  # the server may still be at it
        with Client(server.websocket_url) as client:
            answer = client.ask(hello("short"))
            assert isinstance(answer, wire.Welcome)
            acked, tries = answer.acked_seq, tries + 1
            assert tries < 200


@pytest.mark.anyio
async def test_others_have_their_turn_while_many_large_frames_are_read() -> None:
    frame = wire.encode(steps(1, 0, np.zeros(4096), grad_norm=np.zeros(4096)))  # 64 KiB
    turns, seen = list[int](), list[int]()

    async def others() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    def messages() -> Iterator[bytes]:
        for _ in range(16):
            seen.append(len(turns))
            yield frame

    task = asyncio.create_task(others())
    answers = await Conversation(cast(Pipeline, None)).take(
        messages()
    )  # nobody said Hello: nothing is stored
    task.cancel()
    assert len(answers) == 16
    assert len(set(seen)) >= 4
