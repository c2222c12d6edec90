"""The worker against a real HTTP receiver, on a real database, under a clock that only the test moves."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed
from standardwebhooks import Webhook

from alert_bench import CONFIG, Bench, running_bench
from alert_receiver import receiver
from alert_samples import INCIDENT, SECRET, SINKING_TEXT, add_run_and_endpoint, at_stake, endpoint
from trainvitals_server.alert import outbox as worker
from trainvitals_server.alert.endpoint import Endpoint
from trainvitals_server.alert.message import trial_message
from trainvitals_server.alert.outbox import Outbox
from trainvitals_server.alert.policy import GROUP_S
from trainvitals_server.errors import ConfigError
from trainvitals_server.store import alerts, endpoints, outbox, runs
from trainvitals_server.store.database import Database

pytestmark = pytest.mark.anyio


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


async def test_a_message_of_another_version_does_not_stop_those_behind_it(database: Database) -> None:
    async with running_bench(database) as bench:
        await bench.save(changed(INCIDENT, id="inc0", severity="warning"))
        await bench.write(lambda c: c.execute("UPDATE outbox SET body = x'90', next_try_at = 0"))
        await bench.save()
        message, _ = await bench.take()
        assert message["data"]["incident"]["id"] == "inc1"


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


def test_an_endpoint_is_a_value(database: Database) -> None:
    hook: Endpoint = endpoint()
    database.write(lambda c: endpoints.save_endpoint(c, hook)).result()
    assert database.read(lambda c: endpoints.find_endpoint(c, "hook1")) == hook
