"""Commands: what a person may do to a run from the page: rename it, note something, stop it, delete it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from trainvitals import wire
from trainvitals_server.responses import JsonResponse
from trainvitals_server.services import Services, services_of

Name = Annotated[str, Field(max_length=wire.MAX_NAME_CHARS)]
Text = Annotated[str, Field(max_length=wire.MAX_TEXT_CHARS)]
Parts = Annotated[Services, Depends(services_of)]

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


class StopRequest(BaseModel):
    """Why the run is to stop, in the user's words."""

    model_config = ConfigDict(extra="forbid")
    reason: Text = ""


class RunPatch(BaseModel):
    """What to change; a field that is absent stays."""

    model_config = ConfigDict(extra="forbid")
    name: Name | None = None
    tags: Annotated[list[Name], Field(max_length=wire.MAX_TAGS)] | None = None
    notes: Text | None = None


@router.post("/{run_id:path}/stop")
async def stop_run(run_id: str, services: Parts, request: StopRequest | None = None) -> JsonResponse:
    """Ask the run to stop; it does so after its current step, or when it is next heard from."""
    reason = wire.clip(request.reason if request else "", wire.MAX_TEXT_CHARS)
    await services.pipeline.request_stop(run_id, reason)
    return JsonResponse({"run_id": run_id, "stop_requested": True}, status_code=202)


@router.patch("/{run_id:path}")
async def patch_run(run_id: str, patch: RunPatch, services: Parts) -> JsonResponse:
    """Rename the run, tag it, note something about it."""
    name = None if patch.name is None else wire.clip(patch.name)
    tags = None if patch.tags is None else [wire.clip(tag) for tag in patch.tags]
    return JsonResponse(await services.pipeline.patch(run_id, name=name, tags=tags, notes=patch.notes))


@router.delete("/{run_id:path}", status_code=204)
async def delete_run(run_id: str, services: Parts) -> Response:
    """Forget the run and everything that belongs to it."""
    await services.pipeline.delete(run_id)
    return Response(status_code=204)
