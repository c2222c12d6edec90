"""Messages that do not arrive at once: when the next try is, under which id, and which is the last."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from alert_bench import CONFIG, Bench, new_outbox, running_bench
from alert_receiver import receiver
from alert_samples import INCIDENT, endpoint
from trainvitals_server.alert import outbox as worker
from trainvitals_server.alert.message import trial_message
from trainvitals_server.alert.outbox import LEASE_S
from trainvitals_server.store import endpoints, outbox, runs
from trainvitals_server.store.database import Database

pytestmark = pytest.mark.anyio
DELAYS_S = [5, 30, 120, 600, 1800, 7200, 18000, 36000]


async def test_retries_follow_the_schedule_under_one_id_and_then_give_up(database: Database) -> None:
    async with running_bench(database) as bench:
        for _ in range(9):
            bench.hook.answer(500)
        await bench.save()
        ids = [(await bench.take())[1]["webhook-id"]]
        await bench.settled()
        for delay in DELAYS_S:
            await bench.advance(delay - 1)
            assert bench.hook.received.empty()
            await bench.advance(1)
            ids.append((await bench.take())[1]["webhook-id"])
        assert len(set(ids)) == 1
        await bench.settled()
        (message,) = bench.messages()
        assert (message["outcome"], message["next_try_at"], message["tries"]) == ("given_up", None, 9)
        assert [each["status"] for each in message["attempts"]] == [500] * 9


async def test_a_server_that_dies_between_sending_and_recording_sends_again_under_the_same_id(
    database: Database,
) -> None:
    async with running_bench(database) as bench:
        first = await _die_in_the_middle(bench)
        bench.now += 1
        bench.outbox = new_outbox(bench)
        await bench.outbox.start()
        _, second = await bench.take()
        assert second["webhook-id"] == first["webhook-id"]
        assert second["webhook-timestamp"] != first["webhook-timestamp"]


async def _die_in_the_middle(bench: Bench) -> dict[str, str]:
    """Send, get no answer, and end without any cleaning up; return the headers of what was sent."""
    bench.hook.hold.clear()
    await bench.save()
    _, headers = await bench.take()
    for task in (bench.outbox._worker, *bench.outbox._sending.values()):
        assert task is not None
        task.cancel()
    await asyncio.sleep(0)
    bench.hook.hold.set()
    return headers


async def test_410_disables_the_endpoint_and_drops_what_waits(database: Database) -> None:
    async with running_bench(database) as bench:
        bench.hook.answer(410)
        await bench.save()
        await bench.take()
        await bench.settled()
        assert await bench.save(changed(INCIDENT, id="inc2")) == 0
        (hook,) = bench.database.read(endpoints.list_endpoints)
        assert hook.disabled_why == "it answered 410 Gone"
        assert [message["outcome"] for message in bench.messages()] == ["given_up"]


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_obeyed(status: int, database: Database) -> None:
    async with running_bench(database) as bench:
        bench.hook.answer(status, {"retry-after": "90"})
        await bench.save()
        await bench.take()
        await bench.settled()
        await bench.advance(89)
        assert bench.hook.received.empty()
        await bench.advance(1)
        await bench.take()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_a_failure_and_is_not_followed(status: int, database: Database) -> None:
    async with running_bench(database) as bench:
        with receiver() as elsewhere:
            bench.hook.answer(status, {"location": elsewhere.url})
            await bench.save()
            await bench.take()
            await bench.settled()
            assert elsewhere.received.empty()
        (message,) = bench.messages()
        assert message["outcome"] is None
        assert [each["status"] for each in message["attempts"]] == [status]


async def test_what_is_over_never_overtakes_what_was_opened(database: Database) -> None:
    async with running_bench(database) as bench:
        bench.hook.answer(500)
        await bench.save()
        await bench.take()
        await bench.settled()
        await bench.save(changed(INCIDENT, state="resolved", revision=2), "resolved")
        await bench.settled()
        assert bench.hook.received.empty()
        await bench.advance(5)
        types = [(await bench.take())[0]["type"] for _ in range(2)]
        assert types == ["incident.opened", "incident.resolved"]


async def test_an_endpoint_that_hangs_delays_no_other(database: Database) -> None:
    async with running_bench(database) as bench:
        bench.hook.hold.clear()
        with receiver() as other:
            add = endpoint(other.url, endpoint_id="hook2")
            await bench.write(lambda c: endpoints.save_endpoint(c, add))
            assert await bench.save() == 2
            assert (await asyncio.to_thread(other.take)).path == "/hook"


async def test_no_answer_in_time_is_a_failure(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "TIMEOUT_S", 0.05)
    async with running_bench(database) as bench:
        bench.hook.hold.clear()
        await bench.save()
        await bench.settled()
        (message,) = bench.messages()
        assert [(each["status"], each["error"]) for each in message["attempts"]] == [
            (None, "no answer within 0.05 s")
        ]


async def test_an_address_inside_is_refused_and_the_log_says_why(database: Database) -> None:
    config = replace(CONFIG, host="0.0.0.0")  # loopback is not allowed there
    async with running_bench(database, config) as bench:
        await bench.save()
        await bench.settled()
        assert bench.hook.received.empty()
        (message,) = bench.messages()
        assert "127.0.0.1 (loopback)" in message["attempts"][0]["error"]
        assert "webhook_allow_networks" in message["attempts"][0]["error"]


async def test_a_try_for_a_run_that_is_deleted_meanwhile_is_the_last(database: Database) -> None:
    async with running_bench(database) as bench:
        bench.hook.answer(500)
        bench.hook.hold.clear()
        await bench.save()
        await bench.take()
        await bench.write(lambda c: runs.delete_run(c, "run1"))
        bench.hook.hold.set()
        await bench.settled()
        await bench.advance(DELAYS_S[-1])
        (message,) = bench.messages()
        assert (message["outcome"], message["tries"], len(message["attempts"])) == ("cancelled", 1, 1)


async def test_a_message_that_cannot_be_made_is_a_failed_try_and_not_an_endless_one(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_bench(database) as bench:
        await bench.write(
            lambda c: endpoints.save_endpoint(c, endpoint(bench.hook.url, secret="whsec_broken"))
        )
        await bench.save()
        await bench.settled()
        (message,) = bench.messages()
        assert message["next_try_at"] == bench.now + 5
        assert message["attempts"][0]["error"].startswith("Error in this server")
        assert "sending msg_" in caplog.text


async def test_a_redelivery_is_one_more_try_under_the_same_id(database: Database) -> None:
    async with running_bench(database) as bench:
        await bench.save()
        _, first = await bench.take()
        await bench.settled()
        now = bench.now
        await bench.write(lambda c: outbox.redeliver(c, first["webhook-id"], now))
        bench.outbox.wake()
        _, second = await bench.take()
        await bench.settled()
        (message,) = bench.messages()
        assert (second["webhook-id"], message["tries"]) == (first["webhook-id"], 2)


def test_messages_of_a_test_do_not_block_each_other(database: Database) -> None:
    def fill(c: sqlite3.Connection) -> list[str]:
        for name in ("hook1", "hook2"):
            endpoints.save_endpoint(c, endpoint(endpoint_id=name))
            for _ in range(3):
                outbox.add_message(c, name, trial_message(0.0), 0.0, due_at=0.0)
        claims = outbox.claim_due(c, 1.0, lease_s=10.0, limit=16, busy=[])
        again = outbox.claim_due(c, 1.0, lease_s=10.0, limit=16, busy=["hook1"])
        return [claim.endpoint.endpoint_id for claim in claims + again]

    assert sorted(database.write(fill).result()) == ["hook1", "hook2", "hook2"]


def test_a_claim_that_nobody_records_lapses(database: Database) -> None:
    def claim(c: sqlite3.Connection, now: float) -> list[int]:
        return [found.tries for found in outbox.claim_due(c, now, lease_s=LEASE_S, limit=16, busy=[])]

    def fill(c: sqlite3.Connection) -> list[list[int]]:
        endpoints.save_endpoint(c, endpoint())
        outbox.add_message(c, "hook1", trial_message(0.0), 0.0, due_at=0.0)
        return [claim(c, 0.0), claim(c, LEASE_S - 1), claim(c, LEASE_S)]

    assert database.write(fill).result() == [[1], [], [2]]
