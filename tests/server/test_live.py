"""The live hub and its websocket: what is shown to whom, what is replayed, and who must read again."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from fixtures import make_live_v1
from trainvitals.wire import Layer
from trainvitals_server import codec, hub
from trainvitals_server.batch import Batch, Series
from trainvitals_server.errors import BadRequest, Busy, TooLarge
from trainvitals_server.finding import Evidence
from trainvitals_server.hub import MAX_SUBSCRIPTIONS, Browser, Hub, Subscription
from trainvitals_server.incident import Incident
from trainvitals_server.live import follow, parse, router
from trainvitals_server.live_message import join_batches
from trainvitals_server.store.summaries import RunSummary

FIXTURE = json.loads(make_live_v1.PATH.read_text(encoding="utf-8"))
Cell = float | None
LOSS = Subscription(frozenset({"loss"}))
FAR = 1000.0  # a pause that no test waits for


def batch(first_step: int, cells: list[Cell], name: str = "loss", layers: tuple[Layer, ...] = ()) -> Batch:
    values = np.array([math.nan if cell is None else cell for cell in cells])
    series = Series(values, np.array([cell is not None for cell in cells]))
    steps = np.arange(first_step, first_step + len(cells), dtype=np.int64)
    return Batch(steps, {name: series}, layers=layers)


def layer_batch(first_step: int, cells: list[list[float]], names: list[str]) -> Batch:
    values = np.array(cells)
    series = Series(values, np.ones(values.shape, dtype=bool))
    steps = np.arange(first_step, first_step + len(cells), dtype=np.int64)
    return Batch(steps, {}, {"layer_grad_norm": series}, tuple(Layer(name=name) for name in names))


def told(column: dict[str, str]) -> list[str]:
    values, present = codec.decode_column(column)
    return [repr(float(value)) if flag else "missing" for value, flag in zip(values, present, strict=True)]


def incident(run_id: str = "run-1") -> Incident:
    evidence = [Evidence(text="loss", value=-math.inf)]
    return Incident(
        id="i1",
        run_id=run_id,
        kind="sudden_nan",
        severity="critical",
        onset_step=1,
        detected_step=1,
        evidence=evidence,
    )


def summary(run_id: str = "run-1") -> RunSummary:
    return RunSummary(
        run_id=run_id, project="p", group=None, name=None, tags=[], notes="", state="running", started_at=1.0,
        last_seen_at=2.0, last_step=3, stop_requested=False, open_incidents=0, worst_incident=None,
    )  # fmt: skip


async def received(browser: Browser) -> dict[str, Any]:
    text = await asyncio.wait_for(browser.next(), 30)
    assert text is not None
    message: dict[str, Any] = json.loads(text)
    return message


async def kinds(browser: Browser) -> list[str]:
    return [(await received(browser))["t"] for _ in range(browser.waiting)]


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


@pytest.mark.anyio
async def test_nan_the_infinities_and_missing_are_four_different_things_on_the_socket() -> None:
    hub = Hub()
    browser = hub.join()
    hub.subscribe(browser, "run-1", LOSS)
    hub.publish_rows("run-1", 0, batch(7, [math.nan, math.inf, -math.inf, None, 0.5]))
    hello, rows = await received(browser), await received(browser)
    assert hello["t"] == "hello"
    assert told(rows["steps"]) == ["7.0", "8.0", "9.0", "10.0", "11.0"]
    assert told(rows["columns"]["loss"]) == ["nan", "inf", "-inf", "missing", "0.5"]
    assert rows.keys() == {"t", "run_id", "rank", "cursor", "steps", "columns"}


@pytest.mark.anyio
async def test_rows_that_come_together_are_one_message() -> None:
    hub = Hub(rows_every_s=FAR)
    browser = hub.join()
    hub.subscribe(browser, "run-1", LOSS)
    for step in range(100):
        hub.publish_rows("run-1", 0, batch(step, [float(step)]))
    await received(browser)
    rows = await received(browser)
    assert told(rows["columns"]["loss"]) == [repr(float(step)) for step in range(100)]
    assert browser.waiting == 0


@pytest.mark.anyio
async def test_rows_within_the_pause_wait_for_its_end_and_lose_nothing() -> None:
    hub = Hub(rows_every_s=0.01)
    browser = hub.join()
    hub.subscribe(browser, "run-1", LOSS)
    await received(browser)
    steps: list[str] = []
    hub.publish_rows("run-1", 0, batch(0, [1.0]))
    steps += told((await received(browser))["steps"])
    hub.publish_rows("run-1", 0, batch(1, [1.0]))
    assert browser.waiting == 0
    hub.publish_rows("run-1", 0, batch(2, [1.0]))
    steps += told((await received(browser))["steps"])
    assert steps == ["0.0", "1.0", "2.0"]


def test_a_column_that_only_some_batches_have_is_missing_in_the_others() -> None:
    (joined,) = join_batches([batch(0, [1.0]), batch(1, [2.0], name="grad_norm")])
    assert joined.steps.tolist() == [0, 1]
    assert joined.columns["loss"].present.tolist() == [True, False]
    assert joined.columns["grad_norm"].present.tolist() == [False, True]


def test_batches_of_different_layouts_are_not_joined() -> None:
    joined = join_batches([layer_batch(0, [[1.0]], ["a"]), layer_batch(1, [[2.0]], ["b"])])
    assert [one.layers[0].name for one in joined] == ["a", "b"]


@pytest.mark.anyio
async def test_layers_are_sent_row_by_row_with_their_names() -> None:
    hub = Hub()
    browser = hub.join()
    hub.subscribe(browser, "run-1", Subscription(frozenset({"layer_grad_norm"})))
    hub.publish_rows("run-1", 0, layer_batch(0, [[1.0, 2.0], [3.0, 4.0]], ["a", "b"]))
    hub.publish_rows("run-1", 0, layer_batch(2, [[5.0, 6.0]], ["a", "b"]))
    await received(browser)
    rows = await received(browser)
    assert rows["layers"] == ["a", "b"]
    assert told(rows["layer_columns"]["layer_grad_norm"]) == ["1.0", "2.0", "3.0", "4.0", "5.0", "6.0"]


@pytest.mark.anyio
async def test_a_browser_gets_only_what_it_asked_for() -> None:
    hub = Hub(first_cursor=0)
    one, other, board, ranked = (hub.join() for _ in range(4))
    hub.subscribe(one, "run-1", LOSS)
    hub.subscribe(other, "run-2", LOSS)
    hub.subscribe(ranked, "run-1", Subscription(LOSS.series, rank=1))
    board.is_board = True
    hub.publish_rows("run-1", 0, batch(0, [1.0]))
    hub.publish_rows("run-1", 0, batch(0, [1.0], name="secret"))
    hub.publish_rows("run-1", 1, batch(0, [1.0]))
    hub.publish_incident(incident())
    hub.publish_run(summary())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sorted(await kinds(one)) == ["hello", "incident", "rows", "rows", "run"]
    assert await kinds(other) == ["hello"]
    assert await kinds(board) == ["hello", "incident", "run"]
    assert sorted(await kinds(ranked)) == ["hello", "incident", "rows", "run"]


@pytest.mark.anyio
async def test_a_number_in_an_incident_is_spelled() -> None:
    hub = Hub()
    browser = hub.join()
    hub.subscribe(browser, "run-1", LOSS)
    hub.publish_incident(incident())
    await received(browser)
    message = await received(browser)
    assert message["incident"]["evidence"][0]["value"] == "-Infinity"


@pytest.mark.anyio
async def test_a_browser_that_comes_back_is_told_what_it_missed() -> None:
    hub = Hub(rows_every_s=0, first_cursor=100)
    first = hub.join()
    hub.subscribe(first, "run-1", LOSS)
    await received(first)
    hub.publish_rows("run-1", 0, batch(0, [1.0]))
    seen = (await received(first))["cursor"]
    hub.leave(first)
    hub.publish_rows("run-1", 0, batch(1, [2.0]))
    hub.publish_rows("run-2", 0, batch(1, [2.0]))
    hub.publish_incident(incident())
    await asyncio.sleep(0.01)
    again = hub.join()
    hub.subscribe(again, "run-1", LOSS, seen)
    messages = [await received(again) for _ in range(again.waiting)]
    assert [message["t"] for message in messages] == ["hello", "incident", "rows"]
    assert told(messages[2]["steps"]) == ["1.0"]


@pytest.mark.anyio
@pytest.mark.parametrize("cursor", [99, 10**9])
async def test_a_cursor_of_another_server_means_reading_again(cursor: int) -> None:
    hub = Hub(first_cursor=100)
    browser = hub.join()
    hub.subscribe(browser, "run-1", LOSS, cursor)
    assert await kinds(browser) == ["hello", "resync"]


@pytest.mark.anyio
async def test_a_cursor_older_than_the_ring_means_reading_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "RING_BYTES", 3000)
    live = Hub(first_cursor=0)
    for _ in range(20):
        live.publish_incident(incident())
    late, in_time = live.join(), live.join()
    live.subscribe(late, "run-1", LOSS, 1)
    live.subscribe(in_time, "run-1", LOSS, 18)
    assert await kinds(late) == ["hello", "resync"]
    assert await kinds(in_time) == ["hello", "incident", "incident"]


@pytest.mark.anyio
async def test_the_rings_of_quiet_runs_are_given_up_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "RINGS_BYTES", 3000)
    live = Hub(first_cursor=0)
    live.publish_incident(incident("quiet"))
    for _ in range(20):
        live.publish_incident(incident("busy"))
    browser = live.join()
    live.subscribe(browser, "quiet", LOSS, 0)
    live.subscribe(browser, "busy", LOSS, 20)
    assert await kinds(browser) == ["hello", "resync", "incident"]


@pytest.mark.anyio
async def test_a_slow_browser_is_told_to_read_again_and_holds_up_nobody() -> None:
    hub = Hub(queue_messages=8)
    slow, quick = hub.join(), hub.join()
    slow.is_board = True
    for browser in (slow, quick):
        hub.subscribe(browser, "run-1", LOSS)
    got: list[str] = []
    for _ in range(20):
        hub.publish_incident(incident())
        got += await kinds(quick)
    assert got == ["hello", *["incident"] * 20]
    assert slow.waiting <= 8
    assert slow.resyncs > 0
    messages = [await received(slow) for _ in range(slow.waiting)]
    assert [(message["t"], message["run_id"]) for message in messages[:2]] == [
        ("resync", "run-1"),
        ("resync", None),
    ]
    hub.publish_incident(incident())
    assert (await received(slow))["t"] == "incident"


@pytest.mark.anyio
async def test_a_closed_hub_lets_its_browsers_end_and_takes_no_more() -> None:
    hub = Hub()
    browser = hub.join()
    hub.close()
    assert (await received(browser))["t"] == "hello"
    assert await asyncio.wait_for(browser.next(), 30) is None
    with pytest.raises(Busy):
        hub.join()


@pytest.mark.anyio
async def test_subscriptions_are_bounded_and_end() -> None:
    hub = Hub()
    browser = hub.join()
    for number in range(MAX_SUBSCRIPTIONS):
        hub.subscribe(browser, f"run-{number}", LOSS)
    with pytest.raises(TooLarge):
        hub.subscribe(browser, "one more", LOSS)
    follow(hub, browser, parse('{"unsubscribe": {"run_id": "run-1"}}'))
    hub.publish_incident(incident())
    assert await kinds(browser) == ["hello"]


@pytest.mark.anyio
async def test_an_idle_run_leaves_nothing_pending() -> None:
    live = Hub(rows_every_s=0)
    live.publish_rows("run-1", 0, batch(0, [1.0]))
    await asyncio.sleep(0.01)
    assert live._pending == {}


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
