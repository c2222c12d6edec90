from __future__ import annotations

import contextlib
import math
import struct

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from client_rows import hello, steps
from trainvitals import wire

FRAMES: list[wire.ClientFrame] = [
    wire.Hello(
        run_id="r",
        session_id="s",
        session_ordinal=2,
        project="p",
        group="g",
        name="né",
        tags=["a"],
        rank=1,
        world_size=2,
        resume_step=7,
        started_at=1.5,
        late=True,
        environment=wire.Environment(
            versions={"keras": "3"},
            optimizer_config={"lr": math.inf, "n": 1, "flag": True, "none": None},
            operations={"Log": ["model/log"]},
            batch_size=32,
        ),
    ),
    wire.Layout(seq=1, layout_id=1, layers=[wire.Layer(name="dense", kind="Dense", parameters=7)]),
    steps(2, 10, 5),
    wire.Steps(
        seq=3,
        first_step=4,
        count=2,
        layout_id=1,
        steps=np.array([4, 9], "<i8").tobytes(),
        times=wire.Column.pack([1.0, 2.0]),
        columns={"loss": wire.Column.pack([np.nan, 0.0], [True, False])},
        layer_columns={"layer_grad_norm": wire.Column.pack([[1.0, np.inf], [2.0, 3.0]], None, "f4")},
    ),
    wire.Event(seq=4, step=3, kind="validation", time=2.0, data={"val_loss": -math.inf, "epoch": 1}),
    wire.Gap(seq=5, last_seq=9, reason="queue_full", first_step=1, last_step=4, steps_lost=4),
    wire.Heartbeat(next_within_s=30.0, activity="validation"),
    wire.Bye(seq=10, status="failed", step=4, error="boom"),
]
ANSWERS: list[wire.ServerFrame] = [
    wire.Welcome(acked_seq=3, dashboard_url="http://x/runs/1"),
    wire.Ack(acked_seq=4),
    wire.IncidentNotice(
        incident_id="i", kind="sudden_nan", severity="critical", state="open", onset_step=1, detected_step=2,
        verdict="v",
    ),
    wire.Command(name="stop", reason="enough"),
    wire.Reject(code="seq_jump", message="m", seq=4, expected_seq=2, retry_after_s=0.5),
]  # fmt: skip


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_client_frame_comes_back_as_it_was(frame: wire.ClientFrame) -> None:
    assert wire.decode_client(wire.encode(frame)) == frame


@pytest.mark.parametrize("frame", ANSWERS, ids=lambda frame: type(frame).__name__)
def test_a_server_frame_comes_back_as_it_was(frame: wire.ServerFrame) -> None:
    assert wire.decode_server(wire.encode(frame)) == frame


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nan_both_infinities_and_missing_are_four_different_things(dtype: wire.Dtype) -> None:
    values = np.array([np.nan, np.inf, -np.inf, np.nan, -0.0])
    column = wire.Column.pack(values, [True, True, True, False, True], dtype)
    found, present = column.unpack(5)
    assert present.tolist() == [True, True, True, False, True]
    np.testing.assert_array_equal(found[:3], values[:3])
    assert np.signbit(found[4])
    assert wire.Column.pack(values, None, dtype).mask is None


def test_float64_and_int64_are_not_bent() -> None:
    values, _ = wire.Column.pack([1e39, 5e-324]).unpack(2)
    assert values.tolist() == [1e39, 5e-324]
    values, _ = wire.Column.pack([2**62 + 1], None, "i8").unpack(1)
    assert values.tolist() == [2**62 + 1]


@given(
    st.lists(st.tuples(st.floats(), st.booleans()), min_size=1, max_size=70),
)
def test_any_column_with_any_mask_comes_back_bit_for_bit(cells: list[tuple[float, bool]]) -> None:
    values = np.array([value for value, _ in cells])
    flags = np.array([flag for _, flag in cells])
    found, present = wire.Column.pack(values, flags).unpack(len(cells))
    np.testing.assert_array_equal(present, flags)
    assert found[flags].tobytes() == values[flags].tobytes()


@settings(max_examples=500)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\xc1")
@example(b"\x91" * 150)
def test_random_bytes_are_a_wire_error_or_a_frame(data: bytes) -> None:
    with contextlib.suppress(wire.WireError):
        wire.decode_client(data)
    with contextlib.suppress(wire.WireError):
        wire.decode_server(data)


@settings(max_examples=1500)
@given(st.integers(0, len(FRAMES) - 1), st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255))))
def test_mutated_frames_are_a_wire_error_or_a_frame_whose_columns_can_be_read(
    which: int, changes: list[tuple[float, int]]
) -> None:
    data = bytearray(wire.encode(FRAMES[which]))
    for where, byte in changes:
        data[int(where * len(data))] = byte
    try:
        frame = wire.decode_client(bytes(data))
    except wire.WireError:
        return
    if isinstance(frame, wire.Steps):
        assert len(frame.step_numbers()) == frame.count
        for column in frame.columns.values():
            column.unpack(frame.count)
    assert wire.decode_client(wire.encode(frame)) is not None


def test_unknown_fields_are_ignored_and_unknown_frames_are_not() -> None:
    builtins = msgspec.msgpack.decode(wire.encode(FRAMES[2]))
    builtins["from_the_future"] = {"a": [1]}
    assert wire.decode_client(msgspec.msgpack.encode(builtins)) == FRAMES[2]
    with pytest.raises(wire.MalformedFrame, match="hologram"):
        wire.decode_client(msgspec.msgpack.encode({"t": "hologram", "seq": 1}))


def test_another_protocol_version_is_an_error_of_its_own() -> None:
    future = msgspec.structs.replace(hello(), protocol=wire.PROTOCOL + 1)
    with pytest.raises(wire.UnsupportedProtocol, match="protocol 2; this server speaks 1"):
        wire.decode_client(wire.encode(future))
    assert wire.UnsupportedProtocol.code == "protocol"


def nested(levels: int) -> object:
    return {"a": nested(levels - 1)} if levels % 2 else [nested(levels - 1)] if levels else 0


def event(data: object) -> bytes:
    return msgspec.msgpack.encode({"t": "event", "seq": 1, "step": 0, "kind": "autopsy", "data": data})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (nested(900), "data deeper than 16 levels"),
        (nested(17), "data deeper than 16 levels"),
        ({None: 1}, "data with a key that is a NoneType"),
        ([{7: 1}], "data with a key that is a int"),
        ([msgspec.msgpack.Ext(3, b"x")], "data with a Ext"),
    ],
    ids=["very deep", "deep", "no key", "number for a key", "extension"],
)
def test_data_of_an_event_that_cannot_be_told_as_json_are_malformed(value: object, words: str) -> None:
    with pytest.raises(wire.MalformedFrame, match=words):
        wire.decode_client(event({"zz": value}))


def test_data_of_an_event_may_be_tables_and_lists_and_all_that_json_writes() -> None:
    values = [None, True, 1, 2**64 - 1, 0.5, math.inf, "text", [], {}, nested(8), b"bytes"]
    found = wire.decode_client(event({"zz": values}))
    assert isinstance(found, wire.Event)
    assert found.data == {"zz": values}


LONG = "x" * (wire.MAX_NAME_CHARS + 1)
LOSS = {"loss": wire.Column.pack([1.0])}


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (wire.Hello(run_id=LONG, session_id="s"), "a run_id of 201 characters"),
        (wire.Hello(run_id="r", session_id="s", tags=["t"] * 33), "33 tags"),
        (wire.Hello(run_id="r", session_id="s", tags=[LONG]), "a tag of 201"),
        (
            wire.Hello(
                run_id="r",
                session_id="s",
                environment=wire.Environment(config={str(i): i for i in range(201)}),
            ),
            "201 entries",
        ),
        (wire.Layout(seq=1, layout_id=1, layers=[wire.Layer(name=LONG)]), "a layer name of 201"),
        (wire.Layout(seq=1, layout_id=1, layers=[wire.Layer(name="l")] * 4097), "4097 layers"),
        (
            wire.Steps(seq=1, first_step=0, count=1, columns={str(i): LOSS["loss"] for i in range(257)}),
            "257 columns",
        ),
        (wire.Steps(seq=1, first_step=0, count=1, columns={LONG: LOSS["loss"]}), "a series name of 201"),
        (steps(1, 0, 4097), "4097 rows"),
        (
            wire.Steps(
                seq=1,
                first_step=0,
                count=4096,
                layer_columns={
                    name: wire.Column(dtype="u1", data=b"", mask=bytes(1 << 15)) for name in ("a", "b")
                },
            ),
            "524288 cells with a mask; the limit is 262144",
        ),
        (wire.Bye(seq=1, status="failed", error="x" * 4001), "4001 characters of error"),
        (wire.Gap(seq=1, last_seq=1, reason=LONG), "a reason of 201"),
        (wire.Event(seq=1, step=0, kind="message", data={"text": "x" * wire.MAX_FRAME_BYTES}), "a frame of"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_by_number(frame: wire.ClientFrame, words: str) -> None:
    with pytest.raises(wire.OversizedFrame, match=words):
        wire.decode_client(wire.encode(frame))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (wire.Hello(run_id="", session_id="s"), "needs run_id"),
        (wire.Hello(run_id="a/b", session_id="s"), "run_id 'a/b'"),
        (wire.Hello(run_id="a%2Fb", session_id="s"), "run_id 'a%2Fb'"),
        (wire.Hello(run_id="..", session_id="s"), "run_id '..'"),
        (wire.Hello(run_id="a\nb", session_id="s"), "run_id"),
        (wire.Hello(run_id="r", session_id="s", rank=2, world_size=2), "rank 2 of 2"),
        (wire.Steps(seq=0, first_step=0, count=1, columns=LOSS), "seq 0"),
        (wire.Steps(seq=1, first_step=-1, count=1, columns=LOSS), "from step -1"),
        (wire.Hello(run_id="r", session_id="s", rank=2**40, world_size=2**41), "world_size 2199"),
        (wire.Hello(run_id="r", session_id="s", session_ordinal=2**31), "session_ordinal 2147483648"),
        (wire.Hello(run_id="r", session_id="s", resume_step=2**64 - 1), "resume_step 18446"),
        (wire.Hello(run_id="r", session_id="s", started_at=math.nan), "started_at nan"),
        (wire.Hello(run_id="r", session_id="s", started_at=1e300), "started_at 1e\\+300"),
        (wire.Layout(seq=1, layout_id=0), "layout_id 0; it lies between 1"),
        (wire.Layout(seq=1, layout_id=2**63), "layout_id 9223"),
        (wire.Steps(seq=1, first_step=0, count=1, layout_id=2**63, columns=LOSS), "layout_id 9223"),
        (steps(1, wire.MAX_STEP, 2), "2 rows from step 9007"),
        (
            wire.Steps(
                seq=1,
                first_step=0,
                count=4,
                steps=np.array([0, 2**63 - 1, -(2**63), 1], "<i8").tobytes(),
                columns={},
            ),
            "must increase",
        ),
        (wire.Event(seq=1, step=2**63, kind="message"), "step 9223"),
        (wire.Event(seq=1, step=-1, kind="message"), "step -1"),
        (wire.Bye(seq=1, status="finished", step=2**64 - 1), "step 18446"),
        (wire.Gap(seq=1, last_seq=1, reason="r", first_step=2**63), "step of a gap 9223"),
        (wire.Gap(seq=1, last_seq=1, reason="r", last_step=-1), "step of a gap -1"),
        (wire.Heartbeat(next_within_s=math.nan), "next_within_s nan"),
        (wire.Steps(seq=1, first_step=0, count=0), "0 rows"),
        (wire.Steps(seq=1, first_step=0, count=2, columns=LOSS), "a column of 8 bytes for 2 f8 values"),
        (
            wire.Steps(seq=1, first_step=0, count=2, columns={"a": wire.Column(data=b"", mask=b"123")}),
            "a mask of 3 bytes for 2 cells",
        ),
        (
            wire.Steps(seq=1, first_step=3, count=2, steps=np.array([3, 3], "<i8").tobytes()),
            "must increase",
        ),
        (wire.Steps(seq=1, first_step=2, count=1, steps=np.array([3], "<i8").tobytes()), "contradict"),
        (wire.Steps(seq=1, first_step=2, count=1, steps=b"123"), "3 bytes of steps for 1 rows"),
        (wire.Gap(seq=5, last_seq=4, reason="x"), "a gap from 5 to 4"),
        (wire.Gap(seq=5, last_seq=2**62, reason="x"), "a gap from 5 to 46"),
    ],
)
def test_a_frame_that_contradicts_itself_is_malformed(frame: wire.ClientFrame, words: str) -> None:
    with pytest.raises(wire.MalformedFrame, match=words):
        wire.decode_client(wire.encode(frame))


def test_a_packet_gives_back_its_frames() -> None:
    frames = [wire.encode(frame) for frame in FRAMES]
    assert [bytes(frame) for frame in wire.split_packet(wire.join_packet(frames))] == frames
    assert list(wire.split_packet(b"")) == []


@given(st.binary(max_size=60))
def test_a_packet_of_random_bytes_is_a_wire_error_or_frames(body: bytes) -> None:
    with contextlib.suppress(wire.WireError):
        assert wire.join_packet(bytes(frame) for frame in wire.split_packet(body)) == body


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (b"\x01", wire.MalformedFrame, "inside a length"),
        (struct.pack("<I", 9) + b"short", wire.MalformedFrame, "inside a frame"),
        (struct.pack("<I", wire.MAX_FRAME_BYTES + 1), wire.OversizedFrame, "a frame of 1048577"),
        (bytes(wire.MAX_PACKET_BYTES + 1), wire.OversizedFrame, "a packet of 8388609"),
    ],
)
def test_a_packet_that_lies_about_its_lengths_is_refused(
    body: bytes, error: type[wire.WireError], words: str
) -> None:
    with pytest.raises(error, match=words):
        list(wire.split_packet(body))


@given(st.text())
def test_clipped_text_is_bounded_printable_and_can_be_sent(text: str) -> None:
    clipped = wire.clip(text, 20)
    assert len(clipped) <= 20
    assert all(char.isprintable() for char in clipped)
    if text.isprintable() and len(text) <= 20:
        assert clipped == text


def test_a_cut_shows_and_a_lone_surrogate_does_not_break_it() -> None:
    assert wire.clip("abcdef", 4) == "abc…"
    assert wire.clip("a\ud800b") == "a?b"
