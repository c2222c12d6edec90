"""TensorBoard's event files: read as its own writers wrote them, and told where they are broken."""

from __future__ import annotations

import csv
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainvitals_server.cli import main
from trainvitals_server.logfile import read_log
from trainvitals_server.readers import CutOff, Row, UnreadableLog, read_rows
from trainvitals_server.readers.event_file import scalars
from trainvitals_server.readers.tfrecord import masked_crc32c

EVENTS = Path(__file__).parents[1] / "fixtures/events"
NAME = "events.out.tfevents.1700000000.host.1.0.v2"


def float32(values: Iterable[float]) -> npt.NDArray[np.float32]:
    return np.array(list(values), dtype=np.float32)


def rows_of(path: Path) -> list[Row]:
    return list(read_rows(path, lambda _: None))


def tag_of(path: Path, tag: str) -> dict[int, float]:
    return {int(row.cells["step"]): float(row.cells[tag]) for row in rows_of(path) if tag in row.cells}  # type: ignore[call-overload, arg-type]


def csv_column(name: str) -> list[float]:
    with (EVENTS / "keras/log.csv").open() as stream:
        return [float(row[name]) for row in csv.DictReader(stream)]


def written(folder: Path, data: bytes) -> Path:
    path = folder / NAME
    path.write_bytes(data)
    return path


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    checks = struct.pack("<I", masked_crc32c(length)), struct.pack("<I", masked_crc32c(record))
    return length + checks[0] + record + checks[1]


def test_the_loss_of_each_epoch_is_what_keras_wrote_into_its_own_table() -> None:
    found = tag_of(EVENTS / "keras/train" / NAME, "epoch_loss")
    assert list(found) == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(float32(found.values()), float32(csv_column("loss")))


def test_the_folder_tells_losses_of_validation() -> None:
    found = tag_of(EVENTS / "keras/validation" / NAME, "val/epoch_loss")
    np.testing.assert_array_equal(float32(found.values()), float32(csv_column("val_loss")))
    assert read_log(EVENTS / "keras/validation" / NAME).series == {"val_loss"}


def test_losses_of_batches_are_not_mixed_with_those_of_epochs() -> None:
    (branch,) = read_log(EVENTS / "keras/train" / NAME).branches
    loss = branch.columns["loss"]
    assert branch.steps[loss.present].tolist() == list(range(1, 161))


def test_tensors_are_read_and_what_is_no_number_is_left_out() -> None:
    (branch,) = read_log(EVENTS / "scalar" / NAME).branches
    expected = float32([np.nan if step == 30 else 2.0 - step / 50 for step in range(40)])
    np.testing.assert_array_equal(float32(branch.columns["loss"].values), expected)
    assert set(branch.columns) == {"loss", "learning_rate"}


def test_simple_values_are_read() -> None:
    assert tag_of(EVENTS / "simple" / NAME, "loss") == {0: 3.0, 10: 2.375, 20: 1.75, 30: 1.125}


def test_a_divergence_in_keras_s_own_log_is_found_in_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(EVENTS / "keras")]) == 1
    assert "!! gradual_divergence: " in capsys.readouterr().out


def test_the_checksum_is_the_published_one() -> None:
    crc = 0xE3069283  # CRC-32C of "123456789"
    assert masked_crc32c(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_a_file_that_is_still_being_written_is_judged_up_to_there(tmp_path: Path) -> None:
    whole = (EVENTS / "scalar" / NAME).read_bytes()
    log = read_log(written(tmp_path, whole[:-20]))
    assert log.rows == 40
    assert "it ends in the middle" in log.notes[0]


def test_wherever_it_is_cut_the_rows_before_are_the_same(tmp_path: Path) -> None:
    whole = (EVENTS / "simple" / NAME).read_bytes()
    expected = rows_of(EVENTS / "simple" / NAME)
    for length in range(len(whole)):
        found = []
        try:
            for row in read_rows(written(tmp_path, whole[:length]), lambda _: None):
                found.append(row)  # noqa: PERF402  (the rows before an error count)
        except CutOff:
            pass
        assert found == expected[: len(found)]


def test_any_flipped_bit_is_told_with_its_record(tmp_path: Path) -> None:
    whole = (EVENTS / "simple" / NAME).read_bytes()
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 4
        with pytest.raises(UnreadableLog, match=r"record \d+: "):
            rows_of(written(tmp_path, bytes(broken)))


def test_a_record_with_a_good_checksum_and_nonsense_inside_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLog, match=r"record 0: no event: "):
        rows_of(written(tmp_path, framed(b"\x2a\xff\x01")))


def test_large_records_are_passed_over(tmp_path: Path) -> None:
    image = framed(b"\x22" + b"\x00" * 2_000_000)
    simple = (EVENTS / "simple" / NAME).read_bytes()
    path = written(tmp_path, image + simple)
    assert [row.cells for row in rows_of(path)] == [row.cells for row in rows_of(EVENTS / "simple" / NAME)]


@given(st.binary(max_size=200))
def test_no_bytes_make_an_event_raise_anything_else(data: bytes) -> None:
    with suppress(ValueError):
        list(scalars(data))


@pytest.mark.tensorflow
def test_a_number_of_any_type_is_read_as_tensorflow_wrote_it(tmp_path: Path) -> None:
    import tensorflow as tf

    dtypes = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "uint32", "uint64")
    event = tf.compat.v1.Event(step=-7)
    for name in dtypes:
        tensor = tf.make_tensor_proto(3, dtype=name)  # in a typed list
        event.summary.value.add(tag=name, tensor=tensor)
        content = tf.make_tensor_proto(np.array([3, 3], tf.as_dtype(name).as_numpy_dtype))
        content.tensor_content = content.tensor_content[: tf.as_dtype(name).size]
        event.summary.value.add(tag=f"{name} bytes", tensor=content)
    event.summary.value.add(tag="many", tensor=tf.make_tensor_proto([1.0, 2.0]))
    event.summary.value.add(tag="text", tensor=tf.make_tensor_proto("3"))
    with tf.io.TFRecordWriter(str(tmp_path / NAME)) as writer:
        writer.write(event.SerializeToString())
    found = [(row.cells["step"], *row.cells) for row in rows_of(tmp_path / NAME)]
    tags = [tag for name in dtypes for tag in (name, f"{name} bytes")]
    assert found == [(-7, tag, "step") for tag in tags]
    assert {
        value for row in rows_of(tmp_path / NAME) for tag, value in row.cells.items() if tag != "step"
    } == {3.0}
