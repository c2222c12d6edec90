"""TensorBoard's event files: read as its own writers wrote them, and told where they are broken."""

from __future__ import annotations

import csv
import json
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
from trainvitals_server.finding import KINDS
from trainvitals_server.logfile import Log, read_log
from trainvitals_server.readers import CutOff, Row, UnreadableLog, read_rows, runs_of
from trainvitals_server.readers.event_file import scalars
from trainvitals_server.readers.source import open_source
from trainvitals_server.readers.tfrecord import masked_crc32c, read_records

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


def keras_run(folder: Path, *, name: str = NAME, tags: str = "batch") -> Path:
    """Copy Keras's own two files to `folder`; of `tags` "epoch" only what it writes once an epoch."""
    for part in ("train", "validation"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        data = (EVENTS / "keras" / part / NAME).read_bytes()
        if tags == "epoch" and part == "train":
            records = [record for _, record in records_of(EVENTS / "keras" / part / NAME)]
            data = b"".join(framed(record) for record in records if b"batch_" not in record)
        (folder / part / name).write_bytes(data)
    return folder


def records_of(path: Path) -> list[tuple[int, bytes]]:
    with open_source(path, lambda _: None) as source:
        return list(read_records(source))


def run_in(folder: Path) -> Log:
    (run,) = runs_of(folder.rglob("events*"))
    return read_log(run.path, parts=run.parts)


def test_training_and_validation_of_keras_are_one_run(tmp_path: Path) -> None:
    log = run_in(keras_run(tmp_path / "run"))
    (branch,) = log.branches
    assert (log.path, set(branch.columns)) == (tmp_path / "run", {"loss", "val_loss"})
    present = branch.columns["val_loss"].present
    assert branch.steps[present].tolist() == [32, 64, 96, 128, 160]
    np.testing.assert_array_equal(
        float32(branch.columns["val_loss"].values[present]), float32(csv_column("val_loss"))
    )
    assert log.notes[0].startswith("one run in 2 files: train/events")


def test_of_a_run_that_logs_epochs_the_validation_counts_in_epochs_too(tmp_path: Path) -> None:
    (branch,) = run_in(keras_run(tmp_path, tags="epoch")).branches
    for name in ("loss", "val_loss"):
        series = branch.columns[name]
        assert branch.steps[series.present].tolist() == [0, 1, 2, 3, 4]
        np.testing.assert_array_equal(float32(series.values[series.present]), float32(csv_column(name)))


def test_a_run_that_was_begun_again_is_one_run_of_two_branches(tmp_path: Path) -> None:
    keras_run(keras_run(tmp_path), name=NAME.replace("17000", "17001"))
    log = run_in(tmp_path)
    assert [set(branch.columns) for branch in log.branches] == [{"loss", "val_loss"}] * 2
    assert [int(branch.columns["val_loss"].present.sum()) for branch in log.branches] == [5, 5]


def test_runs_in_folders_of_their_own_stay_apart_and_so_do_other_logs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        keras_run(tmp_path / name)
    (tmp_path / "c.csv").write_text("step,loss\n0,1\n")
    (tmp_path / "d.csv").write_text("step,loss\n0,1\n")
    found = runs_of(path for path in tmp_path.rglob("*") if path.is_file())
    assert [(run.path.name, len(run.parts)) for run in found] == [
        ("a", 2),
        ("b", 2),
        ("c.csv", 1),
        ("d.csv", 1),
    ]


def test_a_part_that_has_only_begun_does_not_hide_the_other(tmp_path: Path) -> None:
    keras_run(tmp_path)
    (tmp_path / "validation" / NAME).write_bytes(b"\0\0")
    log = run_in(tmp_path)
    assert log.counts["loss"] == 160
    assert "validation/events" in log.notes[1]
    assert "it ends in the middle" in log.notes[1]


def test_every_kind_is_told_of_a_run_in_two_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", "--json", str(keras_run(tmp_path / "run"))])
    (line,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert line["file"] == str(tmp_path / "run")
    assert sorted([*line["ran"], *line["skipped"]]) == sorted(KINDS)
    assert line["skipped"]["overfitting"] == "5 values of val_loss, it takes 7"
