"""The message types that client and server exchange, and their bytes: protocol version 1.

The only code that both sides share. Frames are msgpack maps with a tag; unknown fields are ignored, every
size is limited. This module moves no bytes and keeps no state: what a duplicate or a jump in `seq` means is
decided in the server's ingest, what is sent when in the client's sender. It is one long file on purpose:
messages, limits and the checks that hold them together are read and changed as one.

Rules of the stream: a client opens with `Hello`, the server answers `Welcome`. Frames that carry `seq`
(`Layout`, `Steps`, `Event`, `Gap`, `Bye`) count 1, 2, 3 ... within a session; a frame with `seq <=
acked_seq` is a duplicate (acked again, stored once), one that jumps is answered by `Reject(code="seq_jump",
expected_seq=...)`.

    WireError
    +-- MalformedFrame      bytes that are no message of ours
    +-- OversizedFrame      beyond a limit of this module
    +-- UnsupportedProtocol a Hello of another protocol version
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from trainvitals.plain import fault_of

PROTOCOL = 1

MAX_FRAME_BYTES = 1 << 20  # one websocket message; small enough that a bad client cannot hold much memory
MAX_PACKET_BYTES = 8 << 20  # one POST body: several frames
MAX_ROWS = 4096  # rows of one Steps frame: one storage block
MAX_COLUMNS = 256  # series of one frame; a run's own cap is the server's
MAX_LAYERS = 4096
MAX_MASKED_CELLS = (
    1 << 18
)  # of layers in one frame: a missing cell is one bit here and many bytes once decoded
MAX_NAME_CHARS = 200  # names of runs, layers, series; longer ones are cut, with an ellipsis
MAX_TEXT_CHARS = 4000  # messages, notes
MAX_TAGS = 32
MAX_CONFIG_ITEMS = 200
MAX_OPERATIONS = 16  # names of one kind of operation
_BAD_IN_RUN_IDS = frozenset("/\\?#%")  # servers and proxies disagree about them, even when quoted
MAX_STEP = 1 << 53  # beyond it a step is no exact number in a browser
MAX_NUMBER = (1 << 31) - 1  # of ranks, sessions, layouts
MAX_TIME = 253_402_300_800.0  # unix seconds at the end of the year 9999: what a browser's calendar takes

Scalar = bool | int | float | str | None
Dtype = Literal["f4", "f8", "i4", "i8", "u1"]
_ITEM_BYTES: dict[Dtype, int] = {"f4": 4, "f8": 8, "i4": 4, "i8": 8, "u1": 1}
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class WireError(ValueError):
    """A frame that cannot be taken; `code` is what a `Reject` carries."""

    code = "malformed"


class MalformedFrame(WireError):
    """Bytes that are no message of this protocol, or a message that contradicts itself."""


class OversizedFrame(WireError):
    """A frame, a name or a count beyond the limits of this module."""

    code = "too_large"


class UnsupportedProtocol(WireError):
    """A `Hello` that speaks another protocol version."""

    code = "protocol"


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One series over the rows of a frame. Missing cells are in `mask`; NaN and the infinities are values.

    `data` holds the present cells only, little endian. `mask` has one bit a cell (little bit order, 1 =
    present), or is None when every cell is present. A layer column is row-major `[rows, layers]` and has a
    bit for each cell.
    """

    dtype: Dtype = "f8"
    data: bytes
    mask: bytes | None = None

    @classmethod
    def pack(cls, values: npt.ArrayLike, present: npt.ArrayLike | None = None, dtype: Dtype = "f8") -> Column:
        """Make a column of `values`; cells where `present` is False are missing, whatever their value."""
        cells = np.ascontiguousarray(values).reshape(-1)
        if present is None:
            return cls(dtype=dtype, data=cells.astype("<" + dtype).tobytes())
        flags = np.asarray(present, dtype=bool).reshape(-1)
        if flags.all():
            return cls.pack(values, None, dtype)
        mask = np.packbits(flags, bitorder="little").tobytes()
        return cls(dtype=dtype, data=cells[flags].astype("<" + dtype).tobytes(), mask=mask)

    def present(self, cells: int) -> BoolArray:
        """Return which of `cells` cells hold a value.

        Raises:
            MalformedFrame: if the mask is of another length.
        """
        if self.mask is None:
            return np.ones(cells, dtype=bool)
        if len(self.mask) != (cells + 7) // 8:
            raise MalformedFrame(f"a mask of {len(self.mask)} bytes for {cells} cells")
        packed = np.frombuffer(self.mask, dtype=np.uint8)
        return np.unpackbits(packed, count=cells, bitorder="little").astype(bool)

    def unpack(self, cells: int) -> tuple[npt.NDArray[Any], BoolArray]:
        """Return (values, present), each of length `cells`; a missing cell's value is 0 and means nothing.

        Raises:
            MalformedFrame: if data and mask do not fit `cells`.
        """
        self.check(cells)
        present = self.present(cells)
        found = np.frombuffer(self.data, dtype="<" + self.dtype)
        if self.mask is None:
            return found.astype(self.dtype), present
        values = np.zeros(cells, dtype=self.dtype)
        values[present] = found
        return values, present

    def check(self, cells: int) -> None:
        """Compare the lengths of data and mask with `cells`, without making arrays of them.

        Raises:
            MalformedFrame: if they do not fit.
        """
        count = cells
        if self.mask is not None:
            if len(self.mask) != (cells + 7) // 8:
                raise MalformedFrame(f"a mask of {len(self.mask)} bytes for {cells} cells")
            count = (int.from_bytes(self.mask, "little") & ((1 << cells) - 1)).bit_count()
        if len(self.data) != count * _ITEM_BYTES[self.dtype]:
            raise MalformedFrame(f"a column of {len(self.data)} bytes for {count} {self.dtype} values")


class Layer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of variables that is watched as one.

    `name` is its path in the model, `dtype` that of its variables; `activation` is the function that makes
    its output, where that is known. One without `has_gradient` is watched for its outputs only.
    """

    name: str
    kind: str = ""
    parameters: int = 0
    dtype: str = ""
    compute_dtype: str = ""
    trainable: bool = True
    activation: str = ""
    has_gradient: bool = True


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the run is made of: what a person would ask first when it breaks.

    `operations` lists, by kind, the graph names of operations in the traced step that can overflow or be
    undefined: `Log`, `Sqrt`, `Exp`, `Pow`, `RealDiv`, `Reciprocal`, `Softmax`, `float16_limit_constant` (a
    half-precision constant at the end of its range); at most 16 names a kind.
    """

    versions: dict[str, str] = {}
    dtype_policy: str = ""
    optimizer: str = ""
    optimizer_config: dict[str, Scalar] = {}
    loss: str = ""
    loss_scaling: bool = False
    jit_compile: bool | None = None
    steps_per_execution: int | None = None
    run_eagerly: bool | None = None
    strategy: str = ""
    device: str = ""
    steps_per_epoch: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    operations: dict[str, list[str]] = {}
    program: str = ""
    host: str = ""
    config: dict[str, Scalar] = {}


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="hello"):
    """The first frame of a connection: who is speaking. Sent again, unchanged in its ids, on every reconnect.

    `late` marks an old spool that `trainvitals sync` uploads: it is folded apart and notifies nobody.
    """

    protocol: int = PROTOCOL
    run_id: str
    session_id: str
    session_ordinal: int = 0
    project: str = "default"
    group: str | None = None
    name: str | None = None
    tags: list[str] = []
    rank: int = 0
    world_size: int = 1
    resume_step: int | None = None
    started_at: float = 0.0
    late: bool = False
    environment: Environment = Environment()


class Layout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="layout"):
    """The layers that later layer columns mean, and the environment once the model is built."""

    seq: int
    layout_id: int
    layers: list[Layer] = []
    environment: Environment | None = None


class Steps(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="steps"):
    """Rows of per-step values.

    Row i is step `first_step + i`, or `steps[i]` (int64) where steps are not consecutive. `times` is the
    host's clock (unix seconds) when the row was read; `layer_columns` are `[count, layers]` of the layout
    `layout_id`.
    """

    seq: int
    first_step: int
    count: int
    layout_id: int = 0
    steps: bytes | None = None
    times: Column | None = None
    columns: dict[str, Column] = {}
    layer_columns: dict[str, Column] = {}

    def step_numbers(self) -> IntArray:
        """Return the step of each row, int64 `[count]`.

        Raises:
            MalformedFrame: if the steps do not fit the count, fall back, or leave the range of steps.
        """
        if self.steps is None:
            return np.arange(self.first_step, self.first_step + self.count, dtype=np.int64)
        if len(self.steps) != 8 * self.count:
            raise MalformedFrame(f"{len(self.steps)} bytes of steps for {self.count} rows")
        numbers = np.frombuffer(self.steps, dtype="<i8").astype(np.int64)
        if np.any(numbers[1:] <= numbers[:-1]):  # not their difference: it wraps round
            raise MalformedFrame("steps of one frame must increase")
        if self.count and (numbers[0] != self.first_step or numbers[-1] > MAX_STEP):
            raise MalformedFrame("explicit steps contradict first_step or are too large")
        return numbers


EventKind = Literal["epoch", "validation", "message", "autopsy", "checkpoint", "resume"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="event"):
    """Something that happened once.

    `epoch`: data {epoch, logs..., }; `validation`: data {epoch, val_...: float}; `checkpoint`: data {path};
    `message`: data {text}; `resume`: data {step}; `autopsy`: data is the report.
    """

    seq: int
    step: int
    kind: EventKind
    time: float = 0.0
    data: dict[str, Any] = {}


class Gap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="gap"):
    """Frames `seq .. last_seq` will never come: dropped, or their rows were lost before they got a frame.

    `steps_lost` rows between `first_step` and `last_step` are gone; `reason` is one word (`queue_full`,
    `spool_full`, `spool_corrupt`, `ring_overflow`, `killed`).
    """

    seq: int
    last_seq: int
    reason: str
    first_step: int | None = None
    last_step: int | None = None
    steps_lost: int = 0


class Heartbeat(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="heartbeat"
):
    """I am alive, and you hear from me again within `next_within_s` seconds."""

    next_within_s: float
    activity: str = ""  # "training", "validation", "checkpoint"


class Bye(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="bye"):
    """The session is over.

    `finished`, `interrupted` (Ctrl-C), `failed` (an exception) or `stopped` (on request).
    """

    seq: int
    status: Literal["finished", "interrupted", "failed", "stopped"]
    step: int | None = None
    error: str = ""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="welcome"):
    """The server's answer to Hello: everything up to `acked_seq` is committed."""

    acked_seq: int
    protocol: int = PROTOCOL
    dashboard_url: str = ""


class Ack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="ack"):
    """Every frame up to `acked_seq` is committed."""

    acked_seq: int


class IncidentNotice(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="incident"
):
    """An incident of this run, for the user's terminal; `state` is open, withdrawn or resolved.

    `news` says what came to be at stake since it was last told, such as a loss scale that now sinks to 0.
    """

    incident_id: str
    kind: str
    severity: str
    state: str
    onset_step: int
    detected_step: int
    verdict: str
    url: str = ""
    news: str = ""


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="command"):
    """What somebody asks of the run from the dashboard."""

    name: Literal["stop"]
    reason: str = ""


class Reject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="reject"):
    """A frame that was not taken, and why. Nothing of it is stored.

    After `seq_jump` the client goes back to `expected_seq`; after `busy` it waits `retry_after_s`;
    `malformed`, `too_large`, `series_cap` and `conflict` will not get better by a retry: the client drops
    the frame, with a `Gap`.
    """

    code: Literal[
        "malformed",
        "too_large",
        "protocol",
        "seq_jump",
        "series_cap",
        "unauthorized",
        "busy",
        "storage",
        "conflict",
    ]
    message: str
    seq: int | None = None
    expected_seq: int | None = None
    retry_after_s: float | None = None


Sequenced = Layout | Steps | Event | Gap | Bye
ClientFrame = Hello | Layout | Steps | Event | Gap | Heartbeat | Bye
ServerFrame = Welcome | Ack | IncidentNotice | Command | Reject

_encoder = msgspec.msgpack.Encoder()
_client_decoder = msgspec.msgpack.Decoder(ClientFrame)
_server_decoder = msgspec.msgpack.Decoder(ServerFrame)


def encode(frame: ClientFrame | ServerFrame) -> bytes:
    """Return the bytes of one frame."""
    return _encoder.encode(frame)


def decode_client(data: bytes | memoryview) -> ClientFrame:
    """Return the checked frame that a client sent.

    Raises:
        OversizedFrame: beyond a limit.
        UnsupportedProtocol: a Hello of another version.
        MalformedFrame: anything else that is wrong.
    """
    if len(data) > MAX_FRAME_BYTES:
        raise OversizedFrame(f"a frame of {len(data)} bytes; the limit is {MAX_FRAME_BYTES}")
    try:
        frame = _client_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(str(error)) from error
    _check(frame)
    return frame


def decode_server(data: bytes | memoryview) -> ServerFrame:
    """Return the frame that a server sent.

    Raises:
        MalformedFrame: if it is none.
    """
    try:
        return _server_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(str(error)) from error


def join_packet(frames: Iterable[bytes]) -> bytes:
    """Return one POST body: each frame's bytes behind its length (uint32, little endian)."""
    return b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)


def split_packet(body: bytes) -> Iterator[memoryview]:
    """Yield the bytes of each frame of a POST body.

    Raises:
        OversizedFrame: if the body or a frame is too large.
        MalformedFrame: if it ends in the middle of a frame.
    """
    if len(body) > MAX_PACKET_BYTES:
        raise OversizedFrame(f"a packet of {len(body)} bytes; the limit is {MAX_PACKET_BYTES}")
    view, offset = memoryview(body), 0
    while offset < len(view):
        if offset + 4 > len(view):
            raise MalformedFrame("a packet that ends inside a length")
        (size,) = struct.unpack_from("<I", view, offset)
        if size > MAX_FRAME_BYTES:
            raise OversizedFrame(f"a frame of {size} bytes; the limit is {MAX_FRAME_BYTES}")
        if offset + 4 + size > len(view):
            raise MalformedFrame("a packet that ends inside a frame")
        yield view[offset + 4 : offset + 4 + size]
        offset += 4 + size


def check_run_id(run_id: str) -> None:
    """Make sure that a run id can be one segment of an address.

    Raises:
        MalformedFrame: if it is empty, too long, or holds what a URL path cannot carry as it is.
    """
    bad = next((char for char in run_id if char in _BAD_IN_RUN_IDS or not char.isprintable()), None)
    if bad is not None or run_id.strip(".") == "":
        raise MalformedFrame(f"run_id {run_id[:50]!r}: it may hold no / \\ ? # % and no control characters")
    _check_text("run_id", [run_id])


def clip(text: str, limit: int = MAX_NAME_CHARS) -> str:
    """Return `text` without control characters, cut to `limit` characters, an ellipsis at a cut.

    Lone surrogates, which no UTF-8 can carry, become a replacement character.
    """
    clean = text.encode("utf-8", "replace").decode("utf-8")
    clean = "".join(char if char.isprintable() else " " for char in clean[: limit + 1])
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _check(frame: ClientFrame) -> None:
    if isinstance(frame, Hello):
        _check_hello(frame)
    elif isinstance(frame, Steps):
        _check_steps(frame)
    elif isinstance(frame, Layout):
        _check_range("layout_id", frame.layout_id, 1, MAX_NUMBER)
        _check_count("layers", len(frame.layers), MAX_LAYERS)
        _check_text("layer name", [layer.name for layer in frame.layers])
        _check_text("layer kind", [layer.kind for layer in frame.layers])
        if frame.environment is not None:
            _check_environment(frame.environment)
    elif isinstance(frame, Gap):
        _check_gap(frame)
    elif isinstance(frame, Event):
        _check_range("step", frame.step)
        if fault := fault_of(frame.data):
            raise MalformedFrame(f"data {fault}")
    elif isinstance(frame, Bye):
        _check_range("step", frame.step)
        _check_count("characters of error", len(frame.error), MAX_TEXT_CHARS)
    elif isinstance(frame, Heartbeat):
        _check_range("next_within_s", frame.next_within_s, -math.inf, math.inf)
    if not isinstance(frame, Hello | Heartbeat) and not 1 <= frame.seq <= MAX_STEP:
        raise MalformedFrame(f"seq {frame.seq}: it starts at 1")


def _check_hello(frame: Hello) -> None:
    if frame.protocol != PROTOCOL:
        raise UnsupportedProtocol(f"protocol {frame.protocol}; this server speaks {PROTOCOL}")
    if not frame.run_id or not frame.session_id:
        raise MalformedFrame("a Hello needs run_id and session_id")
    check_run_id(frame.run_id)
    _check_text("name", [frame.run_id, frame.session_id, frame.project, frame.group or "", frame.name or ""])
    _check_count("tags", len(frame.tags), MAX_TAGS)
    _check_text("tag", frame.tags)
    if not 0 <= frame.rank < max(frame.world_size, 1):
        raise MalformedFrame(f"rank {frame.rank} of {frame.world_size}")
    _check_range("world_size", frame.world_size, 0, MAX_NUMBER)
    _check_range("session_ordinal", frame.session_ordinal, 0, MAX_NUMBER)
    _check_range("resume_step", frame.resume_step)
    _check_range("started_at", frame.started_at, 0, MAX_TIME)
    _check_environment(frame.environment)


def _check_environment(environment: Environment) -> None:
    for table in (environment.versions, environment.optimizer_config, environment.config):
        _check_count("entries", len(table), MAX_CONFIG_ITEMS)
        _check_text("key", list(table))
    for names in environment.operations.values():
        _check_count("operations", len(names), MAX_OPERATIONS)
        _check_text("operation", names)


def _check_steps(frame: Steps) -> None:
    _check_count("rows", frame.count, MAX_ROWS)
    _check_count("columns", len(frame.columns) + len(frame.layer_columns), MAX_COLUMNS)
    _check_text("series name", [*frame.columns, *frame.layer_columns])
    if frame.count < 1 or not 0 <= frame.first_step <= MAX_STEP - frame.count + 1:
        raise MalformedFrame(f"{frame.count} rows from step {frame.first_step}")
    _check_range("layout_id", frame.layout_id, 0, MAX_NUMBER)
    masks = [column.mask or b"" for column in frame.layer_columns.values()]
    _check_count("cells with a mask", sum(8 * len(mask) for mask in masks), MAX_MASKED_CELLS)
    frame.step_numbers()
    for column in frame.columns.values():
        column.check(frame.count)
    if frame.times is not None:
        frame.times.check(frame.count)


def _check_gap(frame: Gap) -> None:
    if not frame.seq <= frame.last_seq <= MAX_STEP:
        raise MalformedFrame(f"a gap from {frame.seq} to {frame.last_seq}")
    _check_text("reason", [frame.reason])
    for number in (frame.first_step, frame.last_step, frame.steps_lost):
        _check_range("step of a gap", number)


def _check_range(what: str, number: float | None, low: float = 0, high: float = MAX_STEP) -> None:
    if number is not None and not low <= number <= high:  # NaN is in no range
        raise MalformedFrame(f"{what} {number}; it lies between {low} and {high}")


def _check_count(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise OversizedFrame(f"{count} {what}; the limit is {limit}")


def _check_text(what: str, texts: Sequence[str]) -> None:
    for text in texts:
        if len(text) > MAX_NAME_CHARS:
            raise OversizedFrame(f"a {what} of {len(text)} characters; the limit is {MAX_NAME_CHARS}")
