"""The live hub: what is shown to whom, what is merged and replayed, and who must read again."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from live_samples import batch, incident, layer_batch, summary, told
from trainvitals_server.batch import Batch
from trainvitals_server.errors import Busy, TooLarge
from trainvitals_server.hub import MAX_SUBSCRIPTIONS, Browser, Hub, Subscription
from trainvitals_server.joined import join
from trainvitals_server.live_message import CELL_BYTES, STEP_BYTES, TEXT_RATIO, group_by_layers, size_of

LOSS = Subscription(frozenset({"loss"}))
FAR = 1000.0  # a pause that no test waits for


async def received(browser: Browser) -> dict[str, Any]:
    text = await asyncio.wait_for(browser.next(), 30)
    assert text is not None
    message: dict[str, Any] = json.loads(text)
    return message


async def kinds(browser: Browser) -> list[str]:
    return [(await received(browser))["t"] for _ in range(browser.waiting)]


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
    joined = join([batch(0, [1.0]), batch(1, [2.0], name="grad_norm")])
    assert joined.steps.tolist() == [0, 1]
    assert joined.columns["loss"].present.tolist() == [True, False]
    assert joined.columns["grad_norm"].present.tolist() == [False, True]


def test_batches_of_different_layouts_are_not_joined() -> None:
    groups = group_by_layers([layer_batch(step, [[1.0]], [name]) for step, name in enumerate("abb")])
    assert [[one.layers[0].name for one in group] for group in groups] == [["a"], ["b", "b"]]


def test_the_size_of_a_message_counts_the_cells_that_its_rows_have_once_they_are_joined() -> None:
    parts = [batch(0, [1.0] * 5), batch(5, [2.0] * 3, name="grad_norm")]
    joined = join(parts)
    cells = sum(one.values.size for one in joined.columns.values())
    assert size_of(parts) == TEXT_RATIO * (STEP_BYTES * 8 + CELL_BYTES * cells)


@pytest.mark.anyio
async def test_rows_that_nobody_watches_stay_in_their_frames() -> None:
    class Frame:
        """Rows that note whether they were read."""

        layers, columns, layer_columns, was_read = (), {"loss": None}, dict[str, object](), False

        def __len__(self) -> int:
            return 1

        def read(self) -> Batch:
            self.was_read = True
            return batch(0, [1.0])

    hub, unseen, seen = Hub(rows_every_s=0.0, first_cursor=0), Frame(), Frame()
    other = hub.join()
    hub.subscribe(other, "another run", LOSS)
    hub.publish_rows("run-1", 0, unseen)
    await asyncio.sleep(0.01)
    hub.subscribe(other, "run-1", LOSS)
    hub.publish_rows("run-1", 0, seen)
    assert [(await received(other))["t"] for _ in range(2)] == ["hello", "rows"]
    assert (unseen.was_read, seen.was_read) == (False, True)
    page = hub.join()
    hub.subscribe(page, "run-1", LOSS, 0)
    assert [(await received(page))["t"] for _ in range(3)] == ["hello", "rows", "rows"]
    assert unseen.was_read


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
async def test_a_deleted_run_is_said_to_be_gone_and_its_waiting_rows_are_not_shown() -> None:
    hub = Hub(rows_every_s=0.01)
    page, other, board = (hub.join() for _ in range(3))
    hub.subscribe(page, "run-1", LOSS)
    hub.subscribe(other, "run-2", LOSS)
    board.is_board = True
    hub.publish_rows("run-1", 0, batch(0, [1.0]))
    hub.publish_rows("run-2", 0, batch(0, [1.0]))
    hub.publish_gone("run-1")
    assert [(await received(other))["t"] for _ in range(2)] == ["hello", "rows"]
    assert await kinds(page) == ["hello", "gone"]
    await received(board)
    gone = await received(board)
    assert gone.keys() == {"t", "run_id", "cursor"}
    assert (gone["t"], gone["run_id"]) == ("gone", "run-1")


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
    monkeypatch.setattr("trainvitals_server.hub.RING_BYTES", 3000)
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
    monkeypatch.setattr("trainvitals_server.hub.RINGS_BYTES", 3000)
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
async def test_subscriptions_are_bounded() -> None:
    hub = Hub()
    browser = hub.join()
    for number in range(MAX_SUBSCRIPTIONS):
        hub.subscribe(browser, f"run-{number}", LOSS)
    with pytest.raises(TooLarge):
        hub.subscribe(browser, "one more", LOSS)
    del browser.runs["run-1"]
    hub.publish_incident(incident())
    assert await kinds(browser) == ["hello"]


@pytest.mark.anyio
async def test_an_idle_run_leaves_nothing_pending() -> None:
    live = Hub(rows_every_s=0)
    live.publish_rows("run-1", 0, batch(0, [1.0]))
    await asyncio.sleep(0.01)
    assert live._pending == {}
