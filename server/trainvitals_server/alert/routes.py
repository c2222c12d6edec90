"""REST of the alerts: webhooks, the delivery log, and what was told of which incident."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from dataclasses import replace
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict

from trainvitals_server.alert.endpoint import Endpoint, Format, check_url, guess_format, mask_secret, mask_url
from trainvitals_server.alert.message import trial_message
from trainvitals_server.alert.outbox import allowed_networks
from trainvitals_server.alert.signing import check_secret, new_secret
from trainvitals_server.alert.transport import why_not
from trainvitals_server.errors import Conflict, NotFound
from trainvitals_server.responses import JsonResponse
from trainvitals_server.services import Services, services_of
from trainvitals_server.store import alerts, endpoints, outbox
from trainvitals_server.store.database import Job

T = TypeVar("T")

MAX_ENDPOINTS = 50
PAUSED = "paused"

router = APIRouter(prefix="/api/v1", tags=["alerts"])
Parts = Annotated[Services, Depends(services_of)]
Limit = Annotated[int, Query(ge=1, le=1000)]


class NewWebhook(BaseModel):
    """A webhook to add; without a format the address tells it, without a secret one is made."""

    model_config = ConfigDict(extra="forbid")
    url: str
    format: Format | None = None
    min_severity: Literal["warning", "critical"] = "warning"
    secret: str | None = None


class WebhookChange(BaseModel):
    """What to change of a webhook; a field that is absent stays."""

    model_config = ConfigDict(extra="forbid")
    url: str | None = None
    format: Format | None = None
    min_severity: Literal["warning", "critical"] | None = None
    paused: bool | None = None


@router.get("/webhooks")
async def list_webhooks(services: Parts) -> JsonResponse:
    """Return every webhook; secrets are masked."""
    found = await _read(services, endpoints.list_endpoints)
    return JsonResponse({"webhooks": [_shown(endpoint) for endpoint in found]})


@router.post("/webhooks")
async def add_webhook(new: NewWebhook, services: Parts) -> JsonResponse:
    """Add a webhook; this answer is the only one that shows its secret, and warns of a useless address."""
    endpoint = Endpoint(
        endpoint_id=f"hook_{secrets.token_hex(8)}",
        url=check_url(new.url),
        format=new.format or guess_format(new.url),
        secret=check_secret(new.secret) if new.secret is not None else new_secret(),
        min_severity=new.min_severity,
        created_at=services.clock(),
    )
    await _write(services, lambda c: _add(c, endpoint))
    warning = await why_not(endpoint.url, allowed_networks(services.config))
    return JsonResponse({**_shown(endpoint, secret=endpoint.secret), "warning": warning}, status_code=201)


@router.get("/webhooks/{webhook_id}")
async def get_webhook(webhook_id: str, services: Parts) -> JsonResponse:
    """Return one webhook."""
    return JsonResponse(_shown(await _read(services, lambda c: _find(c, webhook_id))))


@router.patch("/webhooks/{webhook_id}")
async def change_webhook(webhook_id: str, change: WebhookChange, services: Parts) -> JsonResponse:
    """Change a webhook, pause it, or let a paused or disabled one send again."""
    now = services.clock()
    return JsonResponse(_shown(await _write(services, lambda c: _change(c, webhook_id, change, now))))


@router.delete("/webhooks/{webhook_id}")
async def remove_webhook(webhook_id: str, services: Parts) -> JsonResponse:
    """Remove a webhook with its messages."""
    if not await _write(services, lambda c: endpoints.delete_endpoint(c, webhook_id)):
        raise _unknown(webhook_id)
    return JsonResponse({"removed": webhook_id})


@router.post("/webhooks/{webhook_id}/secret")
async def renew_secret(webhook_id: str, services: Parts) -> JsonResponse:
    """Give a webhook a new secret and show it this once."""
    secret = new_secret()
    endpoint = await _write(services, lambda c: _change(c, webhook_id, WebhookChange(), 0.0, secret=secret))
    return JsonResponse(_shown(endpoint, secret=secret))


@router.post("/webhooks/{webhook_id}/test")
async def test_webhook(webhook_id: str, services: Parts) -> JsonResponse:
    """Send a test message and return how its first try ended."""
    now = services.clock()

    def enqueue(c: sqlite3.Connection) -> str:
        _check_sending(_find(c, webhook_id))
        return outbox.add_message(c, webhook_id, trial_message(now), now, due_at=now)

    message_id = await _write(services, enqueue)
    return JsonResponse(await _tried(services, message_id))


@router.get("/deliveries")
async def list_deliveries(services: Parts, webhook_id: str | None = None, limit: Limit = 100) -> JsonResponse:
    """Return the latest messages with every try: the delivery log."""
    found = await _read(services, lambda c: outbox.list_messages(c, webhook_id, limit))
    return JsonResponse({"deliveries": found})


@router.post("/deliveries/{message_id}/redeliver")
async def redeliver(message_id: str, services: Parts) -> JsonResponse:
    """Send a message once more, under the same webhook-id, and return how that ended."""
    now = services.clock()

    def queue_again(c: sqlite3.Connection) -> None:
        webhook_id = outbox.redeliver(c, message_id, now)
        if webhook_id is None:
            raise NotFound(f"no delivery {message_id}", message_id=message_id)
        _check_sending(_find(c, webhook_id))

    await _write(services, queue_again)
    return JsonResponse(await _tried(services, message_id))


@router.get("/alerts")
async def list_alerts(services: Parts, run_id: str | None = None, limit: Limit = 100) -> JsonResponse:
    """Return which webhook was told of which incident, the latest first."""
    return JsonResponse({"alerts": await _read(services, lambda c: alerts.list_alerts(c, run_id, limit))})


def _find(c: sqlite3.Connection, webhook_id: str) -> Endpoint:
    endpoint = endpoints.find_endpoint(c, webhook_id)
    if endpoint is None:
        raise _unknown(webhook_id)
    return endpoint


def _check_sending(endpoint: Endpoint) -> None:
    if endpoint.disabled_at is not None:
        raise Conflict(f"webhook {endpoint.endpoint_id} does not send: {endpoint.disabled_why}")


def _add(c: sqlite3.Connection, endpoint: Endpoint) -> None:
    if len(endpoints.list_endpoints(c)) >= MAX_ENDPOINTS:
        raise Conflict(f"there are {MAX_ENDPOINTS} webhooks already, the most that one server serves")
    endpoints.save_endpoint(c, endpoint)


def _change(
    c: sqlite3.Connection, webhook_id: str, change: WebhookChange, now: float, secret: str | None = None
) -> Endpoint:
    old = _find(c, webhook_id)
    disabled_at, disabled_why = old.disabled_at, old.disabled_why
    if change.paused is not None:
        disabled_at, disabled_why = (now, PAUSED) if change.paused else (None, None)
    new = replace(
        old,
        url=check_url(change.url) if change.url is not None else old.url,
        format=change.format or old.format,
        min_severity=change.min_severity or old.min_severity,
        secret=secret or old.secret,
        disabled_at=disabled_at,
        disabled_why=disabled_why,
    )
    endpoints.save_endpoint(c, new)
    return new


def _shown(endpoint: Endpoint, secret: str | None = None) -> dict[str, object]:
    return {
        "id": endpoint.endpoint_id,
        "url": mask_url(endpoint),
        "format": endpoint.format,
        "secret": secret or mask_secret(endpoint.secret),
        "min_severity": endpoint.min_severity,
        "created_at": endpoint.created_at,
        "disabled_at": endpoint.disabled_at,
        "disabled_why": endpoint.disabled_why,
    }


def _unknown(webhook_id: str) -> NotFound:
    return NotFound(f"no webhook {webhook_id}", webhook_id=webhook_id)


async def _tried(services: Services, message_id: str) -> dict[str, object]:
    result = await services.outbox.first_try(message_id)
    if result is None:
        return {"message_id": message_id, "delivered": False, "status": None, "error": "not tried yet"}
    return {
        "message_id": message_id,
        "delivered": result.is_delivered,
        "status": result.status,
        "error": result.error,
        "duration_s": result.duration_s,
    }


async def _read(services: Services, query: Job[T]) -> T:
    return await asyncio.to_thread(services.database.read, query)


async def _write(services: Services, job: Job[T]) -> T:
    return await asyncio.wrap_future(services.database.write(job))
