"""Outbox: the worker that sends what waits. The only part of the server that opens connections to elsewhere.

At least once: a message whose answer was not recorded is sent again under the same webhook-id. One message
at a time goes to an endpoint, so that one that hangs delays nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TypeVar

import httpx

from trainvitals_server.alert.addresses import LOOPBACK, Network, parse_networks
from trainvitals_server.alert.endpoint import check_url
from trainvitals_server.alert.payloads import render
from trainvitals_server.alert.schedule import delay_after, parse_retry_after
from trainvitals_server.alert.signing import check_secret, signature_headers
from trainvitals_server.alert.transport import GuardedTransport
from trainvitals_server.config import Config
from trainvitals_server.errors import BadRequest, ConfigError, ServerError
from trainvitals_server.store import alerts, outbox
from trainvitals_server.store.database import Database, Job
from trainvitals_server.store.outbox import Claim, Try

T = TypeVar("T")

TIMEOUT_S = 10.0  # for one try as a whole, a slow answer's trickle included
LEASE_S = 30.0  # longer than a try and its record take; then another claim may send it again
CONCURRENCY = 16
IDLE_S = 30.0  # how long it sleeps at most: the wall clock may jump
TROUBLE_S = 5.0  # pause after the database refused
CLOSE_S = 2.0  # for what is on its way when the server stops; the rest is sent after the next start
ERROR_CHARS = 300
KEEP_S = 30 * 86400.0  # how long the delivery log goes back
FORGET_EVERY_S = 3600.0
GONE = 410

_log = logging.getLogger(__name__)


class Outbox:
    """Sends the messages of the database. After a commit that queued one, `wake()` it."""

    def __init__(
        self,
        database: Database,
        config: Config,
        *,
        clock: Callable[[], float] = time.time,
        unit: Callable[[], float] = random.random,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Check the settings; nothing starts yet.

        Raises:
            ConfigError: if one of the settings' webhooks or networks cannot be used.
        """
        self._database = database
        self._config = config
        self._clock = clock
        self._unit = unit
        self._transport = transport or GuardedTransport(allowed_networks(config))
        self._configured = _configured_endpoints(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._sending: dict[str, asyncio.Task[None]] = {}  # by endpoint
        self._awaited: dict[str, asyncio.Future[Try]] = {}  # by message
        self._forget_at = -math.inf
        self._user_agent = f"trainvitals/{version('trainvitals')}"

    async def start(self) -> None:
        """Bring in the settings' endpoints and begin to send."""
        self._loop = asyncio.get_running_loop()
        wanted, secret, now = self._configured, self._config.webhook_secret, self._clock()

        def prepare(c: sqlite3.Connection) -> None:
            alerts.save_configured(c, wanted, secret, now)
            outbox.release_claims(c, now)

        await self._write(prepare)
        self._client = httpx.AsyncClient(transport=self._transport, trust_env=False, timeout=TIMEOUT_S)
        self._worker = asyncio.create_task(self._run(), name="trainvitals-outbox")

    def wake(self) -> None:
        """Look at once for what is due; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    async def close(self) -> None:
        """Let what is on its way arrive, for a moment, then stop."""
        if self._worker is None:
            return
        self._worker.cancel()
        if self._sending:
            await asyncio.wait(self._sending.values(), timeout=CLOSE_S)
        tasks = [self._worker, *self._sending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()
        self._worker = None

    async def first_try(self, message_id: str) -> Try | None:
        """Wake up and return how the next try of a message ends; None if that takes too long."""
        future = self._awaited.setdefault(message_id, asyncio.get_running_loop().create_future())
        self._woken.set()
        done, _ = await asyncio.wait({future}, timeout=TIMEOUT_S + CLOSE_S)
        self._awaited.pop(message_id, None)
        return future.result() if done else None

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self._forget_old()
                pause = await self._round()
            except ServerError as error:
                _log.warning("alerts wait: %s", error)
                pause = TROUBLE_S
            except Exception:
                _log.exception("alerts wait")
                pause = TROUBLE_S
            with contextlib.suppress(TimeoutError):
                # Not `wait_for`: before Python 3.12 it loses a cancellation that meets the event.
                async with asyncio.timeout(min(pause, IDLE_S)):
                    await self._woken.wait()

    async def _forget_old(self) -> None:
        now = self._clock()
        if now >= self._forget_at:
            self._forget_at = now + FORGET_EVERY_S
            await self._write(lambda c: outbox.delete_old(c, now - KEEP_S))

    async def _round(self) -> float:
        """Begin to send what is due; return the seconds until the next message is."""
        room = CONCURRENCY - len(self._sending)
        due_at = await self._next_due()
        now = self._clock()
        if room <= 0 or due_at is None:
            return IDLE_S  # the end of a try wakes us
        if due_at > now:
            return due_at - now
        busy = list(self._sending)
        claims = await self._write(lambda c: outbox.claim_due(c, now, lease_s=LEASE_S, limit=room, busy=busy))
        for claim in claims:
            task = asyncio.create_task(self._send(claim))
            self._sending[claim.endpoint.endpoint_id] = task
        return 0.0

    async def _next_due(self) -> float | None:
        busy = list(self._sending)
        return await asyncio.to_thread(self._database.read, lambda c: outbox.next_due(c, busy))

    async def _send(self, claim: Claim) -> None:
        try:
            await self._send_and_record(claim)
        except ServerError as error:
            _log.warning(
                "the answer to %s is not recorded, it will be sent again: %s", claim.message_id, error
            )
        finally:
            self._sending.pop(claim.endpoint.endpoint_id, None)
            self._woken.set()

    async def _send_and_record(self, claim: Claim) -> None:
        try:
            result, retry_after_s = await self._post(claim)
        except Exception as problem:  # a message that cannot be made must not come back for ever
            _log.exception("sending %s failed", claim.message_id)
            error = f"{type(problem).__name__} in this server; its log says more"
            result, retry_after_s = Try(at=self._clock(), status=None, error=error, duration_s=0.0), None
        await self._record(claim, result, retry_after_s)

    async def _record(self, claim: Claim, result: Try, retry_after_s: float | None) -> None:
        delay = delay_after(claim.tries, self._unit(), retry_after_s)
        next_try_at = None if delay is None else self._clock() + delay

        def record(c: sqlite3.Connection) -> None:
            outbox.record_try(c, claim, result, next_try_at)
            if result.status == GONE:
                outbox.disable_endpoint(c, claim.endpoint.endpoint_id, "it answered 410 Gone", result.at)

        await self._write(record)
        if not result.is_delivered and next_try_at is None:
            _log.warning("gave up %s to webhook %s", claim.message_id, claim.endpoint.endpoint_id)
        awaited = self._awaited.get(claim.message_id)
        if awaited is not None and not awaited.done():
            awaited.set_result(result)

    async def _post(self, claim: Claim) -> tuple[Try, float | None]:
        at, began = self._clock(), time.perf_counter()
        status: int | None = None
        error: str | None = None
        retry_after_s: float | None = None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                response = await self._client.send(
                    self._request(claim, at), stream=True, follow_redirects=False
                )
                status = response.status_code
                retry_after_s = parse_retry_after(response.headers.get("retry-after"), at)
                try:
                    error = None if response.is_success else await _first_words(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            error = f"no answer within {TIMEOUT_S:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            error = str(problem) or type(problem).__name__
        duration_s = time.perf_counter() - began
        clipped = None if error is None else error[:ERROR_CHARS]
        return Try(at=at, status=status, error=clipped, duration_s=duration_s), retry_after_s

    def _request(self, claim: Claim, at: float) -> httpx.Request:
        endpoint = claim.endpoint
        body = render(claim.message, endpoint.format, self._config.base_url)
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": self._user_agent,
            **signature_headers(endpoint.secret, claim.message_id, int(at), body),
        }
        return self._client.build_request("POST", endpoint.url, content=body, headers=headers)

    async def _write(self, job: Job[T]) -> T:
        return await asyncio.wrap_future(self._database.write(job))


def allowed_networks(config: Config) -> tuple[Network, ...]:
    """Return the networks beside the public ones that webhooks may go to.

    On a server that only this machine reaches, those who can add a webhook are on the machine anyway:
    loopback is allowed there.
    """
    own = LOOPBACK if config.is_loopback else ()
    return own + parse_networks(config.webhook_allow_networks)


def _configured_endpoints(config: Config) -> Sequence[tuple[str, str]]:
    try:
        if config.webhook_secret is not None:
            check_secret(config.webhook_secret)
        urls = [check_url(url) for url in config.webhook]
    except BadRequest as error:
        raise ConfigError(error.message) from None
    return [(alerts.CONFIGURED + hashlib.sha256(url.encode()).hexdigest()[:16], url) for url in urls]


async def _first_words(response: httpx.Response) -> str:
    """Return the beginning of a refusal's body: Slack, for one, says there what it did not like."""
    async for chunk in response.aiter_raw(ERROR_CHARS):
        return chunk.decode("utf-8", "replace")
    return response.reason_phrase
