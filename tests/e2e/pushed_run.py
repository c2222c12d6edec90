"""A run whose frames a test pushes by POST."""

from __future__ import annotations

import httpx
import msgspec
import numpy as np
import numpy.typing as npt

from client_frames import answers, packet
from server_process import ServerProcess
from trainvitals import wire


class Run:
    """A run whose frames a test pushes by POST."""

    def __init__(
        self, server: ServerProcess, run_id: str, name: str | None = None, project: str = "default"
    ) -> None:
        self.url = f"{server.url}/runs/{run_id}"
        self._ingest = f"{server.url}/api/v1/ingest"
        self._hello = wire.Hello(run_id=run_id, session_id="s1", name=name, project=project)
        self._seq = self._step = 0
        self._post()

    def layout(self, layers: list[wire.Layer], environment: wire.Environment) -> None:
        """Say what the run is made of."""
        self._seq += 1
        self._post(wire.Layout(seq=self._seq, layout_id=1, layers=layers, environment=environment))

    def rows(
        self, loss: npt.ArrayLike, present: npt.ArrayLike | None = None, **columns: npt.ArrayLike
    ) -> None:
        """Push the next rows."""
        self._seq += 1
        packed = {"loss": wire.Column.pack(loss, present)}
        packed |= {name: wire.Column.pack(values) for name, values in columns.items()}
        count = len(np.asarray(loss))
        self._post(wire.Steps(seq=self._seq, first_step=self._step, count=count, columns=packed))
        self._step += count

    def layer_norms(
        self,
        norms: npt.ArrayLike,
        present: npt.ArrayLike | None = None,
        stride: int = 1,
        **beside: tuple[npt.ArrayLike, npt.ArrayLike],
    ) -> None:
        """Push rows `[rows, layers]` of the layers' gradient norms, `stride` steps apart.

        Series `beside` them come as their values and which of these are there.
        """
        table = np.asarray(norms, dtype=np.float64)
        self._seq += 1
        steps = self._step + stride * np.arange(len(table), dtype="<i8")
        frame = wire.Steps(
            seq=self._seq,
            first_step=self._step,
            count=len(table),
            layout_id=1,
            steps=None if stride == 1 else steps.tobytes(),
            columns={"loss": wire.Column.pack(np.ones(len(table)))},
            layer_columns={
                "layer_grad_norm": wire.Column.pack(table, present, "f4"),
                **{name: wire.Column.pack(*cells, "f4") for name, cells in beside.items()},
            },
        )
        self._post(frame)
        self._step += stride * len(table)

    def event(self, kind: wire.EventKind, step: int, **data: object) -> None:
        """Tell of something that happened once."""
        self._seq += 1
        self._post(wire.Event(seq=self._seq, step=step, kind=kind, data=dict(data)))

    def resume(self, step: int) -> None:
        """Go on from `step` in another session."""
        ordinal = self._hello.session_ordinal + 1
        self._hello = msgspec.structs.replace(
            self._hello, session_id=f"s{ordinal + 1}", session_ordinal=ordinal, resume_step=step
        )
        self._seq, self._step = 0, step

    def finish(self) -> None:
        """Say good-bye."""
        self._seq += 1
        self._post(wire.Bye(seq=self._seq, status="finished"))

    def lose(self, rows: int, reason: str) -> None:
        """Declare rows that never come."""
        self._seq += 1
        first, last = self._step, self._step + rows - 1
        gap = wire.Gap(
            seq=self._seq,
            last_seq=self._seq,
            reason=reason,
            first_step=first,
            last_step=last,
            steps_lost=rows,
        )
        self._post(gap)
        self._step += rows

    def _post(self, *frames: wire.ClientFrame) -> None:
        answer = httpx.post(self._ingest, content=packet([self._hello, *frames]), trust_env=False)
        answer.raise_for_status()
        rejects = [frame for frame in answers(answer.content) if isinstance(frame, wire.Reject)]
        assert rejects == []
