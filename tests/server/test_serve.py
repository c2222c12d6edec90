from __future__ import annotations

import signal
import socket
import sqlite3
import subprocess
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import httpx2 as httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from client_frames import Client, answers, hello, packet, steps
from server_process import running_server
from trainvitals import wire

HURT = str(Path(__file__).with_name("hurt_server.py"))
TIMEOUT_S = 30.0


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainvitals_server", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_it_says_where_it_listens_and_stops_when_told_while_clients_are_connected(tmp_path: Path) -> None:
    with running_server(tmp_path / "new" / "folder") as server, Client(server.websocket_url) as client:
        assert server.url.startswith("http://127.0.0.1:")
        assert httpx.get(server.url + "/livez").json() == {"status": "ok"}
        client.send(hello(), steps(1, 0, [1.0]))
        client.receive()
        client.wait_for_ack(1)
        assert server.stop() == 0
        assert client.closing_code() == 1012
    assert server.lines == [f"listening on {server.url}"], "nothing else, above all no traceback"


def test_a_client_that_goes_away_within_its_request_leaves_no_traceback(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        for path in ("/api/v1/ingest", "/api/v1/webhooks"):
            with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as client:
                head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
                client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\nhalf")
        assert httpx.get(server.url + "/livez").status_code == 200
        server.stop()
    assert server.lines == [f"listening on {server.url}"]


def test_a_restart_on_the_same_data_knows_what_was_there(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        httpx.post(server.url + "/api/v1/ingest", content=packet([hello(), steps(1, 0, [1.0, 2.0])]))
        server.stop()
        server.start()
        (run,) = httpx.get(server.url + "/api/v1/runs").json()["runs"]
        assert (run["run_id"], run["last_step"]) == ("run", 1)


def test_a_port_that_is_taken_is_one_line_that_says_so(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        ended = serve("--port", port, "--data", str(tmp_path))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"trainvitals serve: cannot listen on 127.0.0.1:{port}: ")
    assert ended.stderr.count("\n") == 1


def test_only_a_port_that_is_taken_asks_for_another(tmp_path: Path) -> None:
    ended = serve("--host", "no.such.host.invalid", "--data", str(tmp_path))
    assert ended.returncode == 2
    assert "cannot listen on no.such.host.invalid:8765" in ended.stderr
    assert "--port" not in ended.stderr


def test_a_database_that_cannot_be_used_is_one_line_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "trainvitals.db").write_bytes(b"a letter to my aunt " * 500)
    ended = serve("--port", "0", "--data", str(tmp_path))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "cannot use" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_beyond_loopback_a_token_is_needed_and_the_first_start_prints_one(tmp_path: Path) -> None:
    with running_server(tmp_path, "--host", "0.0.0.0") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(url + "/livez").status_code == 200
        refusal = httpx.get(url + "/api/v1/runs")
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (401, "unauthorized")
        websocket_url = url.replace("http://", "ws://") + "/api/v1/ingest"
        with pytest.raises(InvalidStatus, match="401"), connect(websocket_url):
            pass

        token = server.line("TRAINVITALS_TOKEN").split()[-1]
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(url + "/api/v1/runs", headers=headers).status_code == 200
        with connect(websocket_url, additional_headers=headers) as websocket:
            websocket.send(wire.encode(hello()))
            answer = websocket.recv(TIMEOUT_S)
        assert isinstance(answer, bytes)
        assert isinstance(wire.decode_server(answer), wire.Welcome)


def test_a_full_queue_refuses_a_post_and_lets_a_websocket_wait(tmp_path: Path) -> None:
    with (
        running_server(tmp_path, launcher=[HURT, "jobs=2", "serve"]) as server,
        Client(server.websocket_url) as client,
        closing(sqlite3.connect(tmp_path / "trainvitals.db", isolation_level=None)) as other,
        ThreadPoolExecutor(16) as pool,
    ):
        client.ask(hello("socket"))
        other.execute("BEGIN IMMEDIATE")  # now the writer waits, and its queue fills
        pending: set[Future[httpx.Response]] = set()
        refused: list[httpx.Response] = []
        while not refused:
            body = packet([hello(f"post {len(pending)}"), steps(1, 0, [1.0])])
            url = server.url + "/api/v1/ingest"
            pending.add(pool.submit(httpx.post, url, content=body, timeout=TIMEOUT_S))
            done, pending = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
            refused += [future.result() for future in done]
        client.send(*(steps(seq, seq, [1.0]) for seq in range(1, 41)))
        other.execute("ROLLBACK")

        taken = [future.result(TIMEOUT_S) for future in pending]
        refused += [response for response in taken if response.status_code != 200]
        for response in refused:
            assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
            assert response.json()["error"]["code"] == "busy"
        acks = [answers(response.content)[-1] for response in taken if response.status_code == 200]
        assert acks
        assert set(acks) == {wire.Ack(acked_seq=1)}
        client.wait_for_ack(40)


def test_a_full_disk_is_a_503_and_not_ready_until_there_is_room(tmp_path: Path) -> None:
    frames = [steps(seq, 100 * seq, np.random.default_rng(seq).random(100)) for seq in range(1, 601)]
    body = packet([hello("post"), *frames])
    with running_server(tmp_path, launcher=[HURT, "pages=100", "serve"]) as server:
        assert httpx.get(server.url + "/readyz").status_code == 200
        refusal = httpx.post(server.url + "/api/v1/ingest", content=body, timeout=TIMEOUT_S)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "storage")
        not_ready = httpx.get(server.url + "/readyz")
        assert (not_ready.status_code, not_ready.json()["error"]["code"]) == (503, "storage")
        assert "full" in not_ready.json()["error"]["message"]
        assert httpx.get(server.url + "/api/v1/runs").status_code == 200, "what is there can be read"
        with Client(server.websocket_url) as client:
            client.ask(hello("socket"))
            client.send(*frames)
            *_, last = client.until_closed()
            assert isinstance(last, wire.Reject)
            assert (last.code, last.retry_after_s) == ("storage", 5.0)
            assert client.closing_code() == 1013

        server.send_signal(signal.SIGUSR1)
        with Client(server.websocket_url) as client:
            assert isinstance(client.ask(hello("socket")), wire.Welcome)
            client.send(*frames)
            client.wait_for_ack(600)
        assert httpx.get(server.url + "/readyz").status_code == 200
        assert server.stop() == 0
        assert len([line for line in server.lines if "cannot write to" in line]) <= 3, server.lines


def test_not_ready_ends_by_itself_when_there_is_room_though_nobody_writes(tmp_path: Path) -> None:
    frames = [steps(seq, 100 * seq, np.random.default_rng(seq).random(100)) for seq in range(1, 601)]
    with running_server(tmp_path, launcher=[HURT, "pages=100", "serve"]) as server:
        url = server.url + "/readyz"
        httpx.post(server.url + "/api/v1/ingest", content=packet([hello(), *frames]), timeout=TIMEOUT_S)
        assert [httpx.get(url).status_code for _ in range(3)] == [503, 503, 503]
        server.send_signal(signal.SIGUSR1)
        assert [httpx.get(url).status_code for _ in range(2)] == [200, 200]


def test_help_imports_no_framework() -> None:
    code = (
        "import sys; from trainvitals_server.cli import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('fastapi', 'uvicorn', 'tensorflow') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--max-series" in ended.stdout
    assert ended.stdout.endswith("[]\n")
