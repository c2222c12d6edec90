"""The worker against a real HTTP receiver, on a real database, under a clock that only the test moves.

Long, since every case needs the same worker, receiver, database and clock, and they are set up here.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed
from standardwebhooks import Webhook

from alert_bench import CONFIG, Bench, new_outbox, running_bench
from alert_receiver import receiver
from alert_samples import INCIDENT, SECRET, SINKING_TEXT, add_run_and_endpoint, at_stake, endpoint
from trainvitals_server.alert import outbox as worker
from trainvitals_server.alert.endpoint import Endpoint
from trainvitals_server.alert.message import trial_message
from trainvitals_server.alert.outbox import LEASE_S, Outbox
from trainvitals_server.alert.policy import GROUP_S
from trainvitals_server.errors import ConfigError
from trainvitals_server.store import alerts, endpoints, outbox, runs
from trainvitals_server.store.database import Database

pytestmark = pytest.mark.anyio
DELAYS_S = [5, 30, 120, 600, 1800, 7200, 18000, 36000]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "alerts.db")
    yield opened
    opened.close()


async def test_a_critical_incident_arrives_signed_at_once(database: Database) -> None:
    async with running_bench(database) as bench:
        assert await bench.save() == 1
        message, headers = await bench.take()
        assert message["type"] == "incident.opened"
        assert message["data"]["incident"]["id"] == "inc1"
        assert message["data"]["url"] == "http://127.0.0.1:8765/runs/run1"
        assert message["data"]["run"] == {"run_id": "run1", "project": "resnet", "name": "lr 3e-4"}
        assert headers["content-type"] == "application/json"


async def test_the_wall_clock_signature_passes_the_independent_verifier(database: Database) -> None:
    with receiver() as hook:
        database.write(lambda c: add_run_and_endpoint(c, endpoint(hook.url))).result()
        real = Outbox(database, CONFIG)
        await real.start()
        database.write(lambda c: alerts.enqueue_alerts(c, INCIDENT, "new", 1.0)).result()
        real.wake()
        got = await asyncio.to_thread(hook.take)
        await real.close()
    assert Webhook(SECRET).verify(got.body, got.headers)["type"] == "incident.opened"


async def test_a_warning_leaves_after_its_group_delay(database: Database) -> None:
    async with running_bench(database) as bench:
        await bench.save(changed(INCIDENT, severity="warning"))
        await bench.advance(GROUP_S - 1)
        assert bench.hook.received.empty()
        await bench.advance(1)
        message, _ = await bench.take()
        assert message["data"]["incident"]["severity"] == "warning"


async def test_a_warning_that_ends_early_sends_nothing(database: Database) -> None:
    async with running_bench(database) as bench:
        warning = changed(INCIDENT, severity="warning")
        await bench.save(warning)
        await bench.save(changed(warning, state="resolved", revision=2), "resolved")
        await bench.advance(1000)
        assert bench.hook.received.empty()
        assert [message["outcome"] for message in bench.messages()] == ["cancelled"]


async def test_an_incident_is_opened_escalated_and_resolved_once_each(database: Database) -> None:
    async with running_bench(database) as bench:
        warning = changed(INCIDENT, severity="warning")
        await bench.save(warning)
        await bench.advance(GROUP_S)
        for incident, change in (
            (changed(warning, revision=2), "updated"),
            (changed(INCIDENT, revision=3), "escalated"),
            (changed(INCIDENT, revision=4), "updated"),
            (changed(INCIDENT, revision=4), "unchanged"),
            (changed(INCIDENT, revision=5, state="resolved"), "resolved"),
        ):
            await bench.save(incident, change)
            await bench.settled()
        types = [(await bench.take())[0]["type"] for _ in range(3)]
        assert types == ["incident.opened", "incident.escalated", "incident.resolved"]
        assert bench.hook.received.empty()


async def test_a_sinking_scale_is_one_further_message_that_says_so(database: Database) -> None:
    async with running_bench(database) as bench:
        await bench.save(at_stake(INCIDENT, usable=True))
        sinking = changed(at_stake(INCIDENT, sinks=True, usable=True), revision=2)
        await bench.save(sinking, "worsened")
        await bench.save(changed(sinking, revision=3), "updated")
        await bench.settled()
        bodies = [(await bench.take())[0] for _ in range(2)]
        assert [body["type"] for body in bodies] == ["incident.opened", "incident.updated"]
        assert bodies[1]["data"]["text"].endswith(f", since step 812: {SINKING_TEXT}")
        assert bench.hook.received.empty()


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


async def test_a_network_that_the_operator_allows_is_reached(database: Database) -> None:
    config = replace(CONFIG, host="0.0.0.0", webhook_allow_networks=("127.0.0.0/8",))
    async with running_bench(database, config) as bench:
        await bench.save()
        await bench.take()


async def test_a_paused_endpoint_keeps_what_waits(database: Database) -> None:
    async with running_bench(database) as bench:
        await bench.save(changed(INCIDENT, severity="warning"))
        await _set(bench, disabled_at=1.0, disabled_why="paused")
        await bench.advance(100)
        assert bench.hook.received.empty()
        await _set(bench, disabled_at=None, disabled_why=None)
        await bench.advance(0)
        await bench.take()


async def _set(bench: Bench, **fields: object) -> None:
    (hook,) = bench.database.read(endpoints.list_endpoints)
    new = replace(hook, **fields)  # type: ignore[arg-type]  # fields of tests
    await bench.write(lambda c: endpoints.save_endpoint(c, new))


async def test_an_endpoint_that_is_deleted_while_it_is_sent_to_leaves_nothing(database: Database) -> None:
    async with running_bench(database) as bench:
        bench.hook.hold.clear()
        await bench.save()
        await bench.take()
        await bench.write(lambda c: endpoints.delete_endpoint(c, "hook1"))
        bench.hook.hold.set()
        await bench.settled()
        assert bench.messages() == []


async def test_what_was_to_be_said_of_a_deleted_run_is_not_sent(database: Database) -> None:
    async with running_bench(database) as bench:
        await bench.save(changed(INCIDENT, severity="warning"))
        await bench.write(lambda c: runs.delete_run(c, "run1"))
        await bench.advance(10 * GROUP_S)
        assert bench.hook.received.empty()
        assert [message["outcome"] for message in bench.messages()] == ["cancelled"]


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


async def test_a_message_of_another_version_does_not_stop_those_behind_it(database: Database) -> None:
    async with running_bench(database) as bench:
        await bench.save(changed(INCIDENT, id="inc0", severity="warning"))
        await bench.write(lambda c: c.execute("UPDATE outbox SET body = x'90', next_try_at = 0"))
        await bench.save()
        message, _ = await bench.take()
        assert message["data"]["incident"]["id"] == "inc1"


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


async def test_the_four_values_arrive_as_four_different_things(database: Database) -> None:
    async with running_bench(database) as bench:
        await bench.save()
        message, _ = await bench.take()
        values = [seen["value"] for seen in message["data"]["incident"]["evidence"]]
        assert values == ["NaN", "Infinity", "-Infinity", None]
        assert math.isnan(float(values[0]))


async def test_endpoints_of_the_settings_come_and_go_with_them(database: Database) -> None:
    url = "https://hooks.slack.com/services/T/B/x"
    configured = replace(CONFIG, webhook=(url,), webhook_secret=SECRET)
    for config, disabled_why in ((configured, None), (CONFIG, alerts.NOT_CONFIGURED), (configured, None)):
        box = Outbox(database, config)
        await box.start()
        await box.close()
        (hook,) = database.read(endpoints.list_endpoints)
        assert (hook.url, hook.format, hook.secret, hook.disabled_why) == (url, "slack", SECRET, disabled_why)


@pytest.mark.parametrize(
    "fields",
    [
        {"webhook": ("ftp://example.org",)},
        {"webhook_secret": "short"},
        {"webhook_allow_networks": ("intranet",)},
    ],
)
def test_a_setting_that_cannot_be_used_is_told_before_anything_starts(
    fields: dict[str, Any], database: Database
) -> None:
    with pytest.raises(ConfigError):
        Outbox(database, replace(CONFIG, **fields))


async def test_the_log_goes_back_a_month_and_what_waits_stays(database: Database) -> None:
    async with running_bench(database) as bench:
        await bench.save()
        await bench.settled()
        await _set(bench, disabled_at=1.0, disabled_why="paused")
        await bench.write(lambda c: outbox.add_message(c, "hook1", trial_message(0.0), bench.now, due_at=0.0))
        bench.now += worker.KEEP_S
        await bench.outbox._forget_old()
        assert len(bench.messages()) == 2
        bench.now += worker.FORGET_EVERY_S
        await bench.outbox._forget_old()
        assert [message["event"] for message in bench.messages()] == ["test"]


async def test_fifty_rounds_leave_no_task_behind(database: Database) -> None:
    before = len(asyncio.all_tasks())
    for _ in range(50):
        box = Outbox(database, CONFIG)
        await box.start()
        box.wake()
        await box.close()
    assert len(asyncio.all_tasks()) == before


def test_a_wake_up_before_the_start_does_no_harm(database: Database) -> None:
    Outbox(database, CONFIG).wake()


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


def test_an_endpoint_is_a_value(database: Database) -> None:
    hook: Endpoint = endpoint()
    database.write(lambda c: endpoints.save_endpoint(c, hook)).result()
    assert database.read(lambda c: endpoints.find_endpoint(c, "hook1")) == hook
