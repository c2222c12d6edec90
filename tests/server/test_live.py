"""The live websocket, and the fixture of its protocol that both codecs read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect
from websockets.sync.client import connect

from client_frames import hello, packet, steps
from fixtures import make_live_v1
from live_samples import batch, incident, summary, told
from server_process import running_server
from trainvitals_server import codec
from trainvitals_server.errors import BadRequest
from trainvitals_server.hub import Hub
from trainvitals_server.live import parse, router

FIXTURE = json.loads(make_live_v1.PATH.read_text(encoding="utf-8"))


def test_the_fixture_is_what_its_generator_writes() -> None:
    assert make_live_v1.PATH.read_text(encoding="utf-8") == make_live_v1.rendered()


def columns_of(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("t") == "rows":
        return {"steps": message["steps"], **message["columns"], **message.get("layer_columns", {})}
    if message.get("t") == "run":
        return dict(message["run"]["sparkline"])
    series = message.get("series", {}).items()
    return {
        f"{name}.{key}": column for name, parts in series for key, column in parts.items() if key != "layers"
    }


def expected_of(case: dict[str, Any]) -> dict[str, Any]:
    expected = case["expected"]
    if case["frame"].get("t") == "rows":
        return {"steps": expected["steps"], **expected["columns"], **expected.get("layer_columns", {})}
    if case["frame"].get("t") == "run":
        return dict(expected["sparkline"])
    series = expected.get("series", {}).items()
    return {f"{name}.{key}": cells for name, parts in series for key, cells in parts.items()}


@pytest.mark.parametrize("case", [*FIXTURE["frames"], *FIXTURE["answers"]])
def test_the_codec_reads_and_writes_the_columns_of_the_fixture(case: dict[str, Any]) -> None:
    columns, expected = columns_of(case["frame"]), expected_of(case)
    assert columns.keys() == expected.keys()
    for name, cells in expected.items():
        spelled = [cell if cell == "missing" else repr(float(cell)) for cell in cells]
        assert told(columns[name]) == spelled, name
        dtype = columns[name]["dtype"]
        values = [0.0 if cell == "missing" else float(cell) for cell in cells]
        again = codec.encode_column(values, [cell != "missing" for cell in cells], dtype)
        assert again == columns[name], name


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"subscribe": {}}', '{"subscribe": {"run_id": 5}}', "[" * 5000, "x" * 70_000]
)
def test_what_is_no_message_of_ours_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse(text)


@pytest.fixture
def client() -> Iterator[TestClient]:
    app = FastAPI()
    app.include_router(router)
    app.state.services = SimpleNamespace(hub=Hub())
    with TestClient(app) as opened:
        yield opened


def hub_of(client: TestClient) -> Hub:
    found = client.app.state.services.hub  # type: ignore[attr-defined]
    assert isinstance(found, Hub)
    return found


def call(client: TestClient, *args: Any) -> None:  # noqa: ANN401 - a function and what it takes
    assert client.portal is not None
    client.portal.call(*args)


def said(socket: WebSocketTestSession, text: str) -> dict[str, Any]:
    """Send a text and return the answer to a bad message after it: by then the text was taken."""
    socket.send_text(text)
    socket.send_text("nonsense")
    answer: dict[str, Any] = socket.receive_json()
    return answer


def test_a_page_sees_rows_through_the_socket(client: TestClient) -> None:
    with client.websocket_connect("/api/v1/live") as socket:
        assert socket.receive_json()["t"] == "hello"
        subscribe = '{"subscribe": {"run_id": "run-1", "series": ["loss"], "cursor": null}}'
        assert said(socket, subscribe)["code"] == "bad_request"
        call(client, hub_of(client).publish_rows, "run-1", 0, batch(3, [math.nan]))
        assert told(socket.receive_json()["columns"]["loss"]) == ["nan"]


def test_the_board_hears_of_runs_until_it_unsubscribes(client: TestClient) -> None:
    with client.websocket_connect("/api/v1/live") as socket:
        socket.receive_json()
        said(socket, '{"subscribe": {"board": true}}')
        call(client, hub_of(client).publish_run, summary())
        assert socket.receive_json()["run"]["run_id"] == "run-1"
        said(socket, '{"unsubscribe": {"board": true}}')
        call(client, hub_of(client).publish_run, summary())
        socket.send_text("nonsense")
        assert socket.receive_json()["t"] == "error"


def test_a_page_that_goes_away_is_forgotten(client: TestClient) -> None:
    with client.websocket_connect("/api/v1/live") as socket:
        socket.receive_json()
        assert hub_of(client).browsers == 1
    assert hub_of(client).browsers == 0


def test_a_server_that_shuts_down_closes_the_socket(client: TestClient) -> None:
    with client.websocket_connect("/api/v1/live") as socket:
        socket.receive_json()
        call(client, hub_of(client).close)
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
    assert closed.value.code == 1012


def test_a_page_that_unsubscribes_from_a_run_hears_no_more_of_it(client: TestClient) -> None:
    with client.websocket_connect("/api/v1/live") as socket:
        socket.receive_json()
        said(socket, '{"subscribe": {"run_id": "run-1", "series": []}}')
        call(client, hub_of(client).publish_incident, incident())
        assert socket.receive_json()["t"] == "incident"
        said(socket, '{"unsubscribe": {"run_id": "run-1"}}')
        call(client, hub_of(client).publish_incident, incident())
        socket.send_text("nonsense")
        assert socket.receive_json()["t"] == "error"


def test_a_page_that_reads_and_then_subscribes_misses_no_row(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        ingest, series = server.url + "/api/v1/ingest", server.url + "/api/v1/runs/run/series"
        httpx.post(ingest, content=packet([hello(), steps(1, 0, [1.0, math.nan])]))
        answer = httpx.get(series).json()
        assert told(answer["series"]["loss"]["value"]) == ["1.0", "nan"]
        httpx.post(ingest, content=packet([hello(), steps(2, 2, [math.inf]), steps(3, 3, [-math.inf])]))
        target = {"run_id": "run", "series": ["loss"], "cursor": answer["cursor"]}
        with connect(server.url.replace("http", "ws") + "/api/v1/live", compression=None) as socket:
            socket.send(json.dumps({"subscribe": target}))
            rows: dict[str, str] = {}
            while "3.0" not in rows:
                message = json.loads(socket.recv(30))
                if message["t"] == "rows":
                    values = told(message["columns"]["loss"])
                    rows |= dict(zip(told(message["steps"]), values, strict=True))
    assert {step: rows[step] for step in ("2.0", "3.0")} == {"2.0": "inf", "3.0": "-inf"}
