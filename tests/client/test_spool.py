from __future__ import annotations

import os
import resource
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_rows import hello, steps
from trainvitals import wire
from trainvitals.backlog import Frame, frame_of
from trainvitals.spool import (
    Spool,
    default_directory,
    next_ordinal,
    read_head,
    session_directory,
    sessions,
)


def frames(first: int, last: int) -> list[Frame]:
    return [frame_of(steps(seq)) for seq in range(first, last + 1)]


def new(folder: Path, *, max_bytes: int = 1 << 20, segment_bytes: int = 1 << 20) -> Spool:
    head = [wire.encode(hello()), wire.encode(wire.Layout(seq=1, layout_id=1))]
    return Spool(folder, lambda: head, max_bytes=max_bytes, segment_bytes=segment_bytes)


def fill(folder: Path, first: int, last: int, segment_bytes: int = 1 << 20) -> None:
    spool = new(folder, segment_bytes=segment_bytes)
    spool.append(frames(first, last))
    spool.close()


def left(folder: Path) -> list[tuple[str, int, int]]:
    spool = Spool.load(folder)
    found: list[Frame] = []
    seq = spool.first_seq or 1
    while seq <= spool.last_seq:
        found += spool.read(seq)
        seq = found[-1].last_seq + 1
    return [(frame.kind, frame.seq, frame.last_seq) for frame in found]


def test_nothing_is_written_before_there_is_something_to_keep(tmp_path: Path) -> None:
    spool = new(tmp_path / "a")
    spool.discard(5)
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_what_was_kept_is_read_again_byte_for_byte(tmp_path: Path) -> None:
    spool = new(tmp_path, segment_bytes=300)
    kept = frames(5, 40)
    assert spool.append(kept[:10]) + spool.append(kept[10:]) == 36
    spool.close()
    again = Spool.load(tmp_path)
    assert (again.first_seq, again.last_seq) == (5, 40)
    found: list[Frame] = []
    while (found[-1].last_seq if found else 4) < 40:
        found += again.read(found[-1].last_seq + 1 if found else 5)
    assert [frame.payload for frame in found] == [frame.payload for frame in kept]
    head, layouts = read_head(tmp_path)
    assert head == hello()
    assert list(layouts) == [1]


def test_acknowledged_segments_leave_the_disk_and_the_folder_with_the_last_of_them(tmp_path: Path) -> None:
    folder = session_directory(tmp_path, "run", "s")
    spool = new(folder, segment_bytes=200)
    for frame in frames(1, 20):
        spool.append([frame])
    before = len(list(folder.iterdir()))
    spool.discard(12)
    assert len(list(folder.iterdir())) < before
    assert spool.first_seq is not None
    assert spool.first_seq <= 13
    spool.discard(20)
    spool.close()
    assert not folder.parent.exists()


def test_a_full_spool_keeps_the_oldest_frames_and_takes_more_when_there_is_room(tmp_path: Path) -> None:
    spool = new(tmp_path, max_bytes=900, segment_bytes=300)
    kept = 0
    while spool.append(frames(kept + 1, kept + 1)):
        kept += 1
    assert spool.size <= 900
    assert spool.troubles["spool_full"] == 1
    spool.discard(kept)
    assert spool.append(frames(kept + 1, kept + 3)) == 3
    spool.close()


def test_a_segment_that_ends_inside_a_record_loses_only_that_record(tmp_path: Path) -> None:
    fill(tmp_path, 1, 5)
    (segment,) = list(tmp_path.glob("0*.frames"))
    os.truncate(segment, segment.stat().st_size - 3)
    assert left(tmp_path) == [("steps", seq, seq) for seq in range(1, 5)]


def test_what_follows_a_damaged_record_is_a_gap_up_to_the_next_segment(tmp_path: Path) -> None:
    fill(tmp_path, 1, 4)
    spool = Spool.load(tmp_path)
    spool.append(frames(5, 6))
    spool.close()
    first = min(tmp_path.glob("0*.frames"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 0xFF
    first.write_bytes(data)
    found = left(tmp_path)
    covered = [seq for _, start, stop in found for seq in range(start, stop + 1)]
    assert covered == [1, 2, 3, 4, 5, 6]
    assert [kind for kind, *_ in found].count("gap") == 1


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=40))
def test_no_damage_raises_or_invents_a_frame(where: int, junk: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        check_damage(Path(name), where, junk)


def check_damage(folder: Path, where: int, junk: bytes) -> None:
    for first in (1, 5, 9):
        fill(folder, first, first + 3)
    paths = sorted(folder.glob("0*.frames"))
    path = paths[where % len(paths)]
    data = path.read_bytes()
    at = where % (len(data) + 1)
    path.write_bytes(data[:at] + junk + data[at + len(junk) :])
    good = {frame.seq: frame.payload for frame in frames(1, 12)}
    spool, seq = Spool.load(folder), 1
    while seq <= spool.last_seq:
        for frame in spool.read(seq):
            assert frame.seq == seq
            assert frame.kind == "gap" or frame.payload == good[frame.seq]
            seq = frame.last_seq + 1


def test_a_folder_that_cannot_be_written_is_counted_not_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    spool = new(tmp_path / "file" / "session")
    assert spool.append(frames(1, 2)) == 0
    assert spool.troubles["spool_write"] == 1
    spool.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_loses_no_frame_that_was_kept_before(tmp_path: Path) -> None:
    fill(tmp_path, 1, 3)
    again = Spool.load(tmp_path)
    (tmp_path / f"{4:016d}.frames").symlink_to("/dev/full")
    assert again.append(frames(4, 6)) == 0
    assert again.troubles["spool_write"] == 1
    assert left(tmp_path) == [("steps", seq, seq) for seq in range(1, 4)]
    assert again.append(frames(4, 6)) == 3
    again.close()


def test_a_write_that_stops_in_the_middle_leaves_nothing_twice(tmp_path: Path) -> None:
    spool = new(tmp_path)
    spool.append(frames(1, 3))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (spool.size + 250, limits[1]))
    try:
        assert spool.append(frames(4, 9)) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert spool.troubles["spool_write"] == 1
    assert spool.append(frames(4, 9)) == 6
    spool.close()
    assert left(tmp_path) == [("steps", seq, seq) for seq in range(1, 10)]


def test_a_file_that_holds_other_frames_than_its_name_says_is_damaged(tmp_path: Path) -> None:
    fill(tmp_path, 1, 3)
    (segment,) = tmp_path.glob("0*.frames")
    segment.rename(tmp_path / f"{2:016d}.frames")
    fill(tmp_path, 5, 6)
    assert left(tmp_path) == [("gap", 2, 4), ("steps", 5, 5), ("steps", 6, 6)]


def test_each_session_of_a_run_counts_one_more(tmp_path: Path) -> None:
    runs = ["a", "a", "b", "a"]
    assert [next_ordinal(tmp_path, run) for run in runs] == [0, 1, 0, 2]
    assert [next_ordinal(tmp_path, "a", rank=1), next_ordinal(tmp_path, "a")] == [0, 3]


def test_sessions_that_begin_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: next_ordinal(tmp_path, "a"), range(40)))
    assert sorted(numbers) == list(range(40))


def test_very_many_runs_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.spool.MAX_ORDINALS", 20)
    for index in range(50):
        next_ordinal(tmp_path, str(index))
    assert 10 <= len(list((tmp_path / "ordinals").iterdir())) <= 20


def test_where_sessions_cannot_be_counted_they_are_all_the_first(tmp_path: Path) -> None:
    (tmp_path / "ordinals").write_text("in the way")
    assert [next_ordinal(tmp_path, "a"), next_ordinal(tmp_path, "a")] == [0, 0]


def test_names_of_any_kind_become_folders_of_their_own(tmp_path: Path) -> None:
    names = ["a/b", "a b", "..", "é\ud800", "x" * 10_000, "", "CON"]
    folders = {session_directory(tmp_path, name, name) for name in names}
    assert len(folders) == len(names)
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "head.frames").write_bytes(b"")
    assert sessions(tmp_path) == sorted(folders)


def test_the_spool_lives_in_the_users_cache_or_where_the_environment_says() -> None:
    assert default_directory({"TRAINVITALS_SPOOL": "/x"}, "linux") == Path("/x")
    assert default_directory({"HOME": "/h"}, "linux") == Path("/h/.cache/trainvitals/spool")
    assert default_directory({"HOME": "/h"}, "darwin") == Path("/h/Library/Caches/trainvitals/spool")
    assert default_directory({"LOCALAPPDATA": "/l"}, "win32") == Path("/l/trainvitals/spool")
