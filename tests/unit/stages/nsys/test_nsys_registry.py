"""The session list that a killed nsys leaves in shared memory: removed when dead, left alone otherwise."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from llm_perf_opt.stages.nsys.run import remove_half_made

VERSION = "2022.4.2.1"


def half_made(folder: Path, version: str = VERSION, state: int = 1, age_s: float = 60.0) -> Path:
    path = folder / f"NSys-{version}"
    path.write_bytes(bytes([state]) + bytes(4095))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_a_dead_half_made_list_of_this_version_is_removed(tmp_path: Path) -> None:
    dead, other = half_made(tmp_path), half_made(tmp_path, "2021.1")
    assert remove_half_made(VERSION, tmp_path) == dead
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize(("state", "age_s"), [(2, 60.0), (0, 60.0), (1, 0.0)])
def test_a_finished_or_a_young_list_stays(tmp_path: Path, state: int, age_s: float) -> None:
    path = half_made(tmp_path, state=state, age_s=age_s)
    assert remove_half_made(VERSION, tmp_path) is None
    assert path.exists()


def test_a_list_that_a_process_has_open_or_mapped_stays(tmp_path: Path) -> None:
    used = half_made(tmp_path)
    with used.open("r+b") as stream:
        assert remove_half_made(VERSION, tmp_path) is None
        mapped = mmap.mmap(stream.fileno(), 4096)
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path)
    with mapped:  # the file is closed; only the mapping is left, and the folder is reached by another name
        assert remove_half_made(VERSION, linked) is None
    assert remove_half_made(VERSION, tmp_path) == used


def test_an_nsys_we_may_not_look_into_counts_as_a_user(tmp_path: Path) -> None:
    path, proc = half_made(tmp_path), tmp_path / "proc"
    (proc / "77").mkdir(parents=True)
    (proc / "77" / "comm").write_text("nsys\n")
    (proc / "77" / "maps").mkdir()  # reading it fails
    assert remove_half_made(VERSION, tmp_path, proc) == path  # not by permission: it ended meanwhile
    path = half_made(tmp_path)

    class Forbidden(type(proc)):  # type: ignore[misc]
        def read_bytes(self) -> bytes:
            raise PermissionError

    assert remove_half_made(VERSION, tmp_path, Forbidden(proc)) is None
    (proc / "77" / "comm").write_text("bash\n")
    assert remove_half_made(VERSION, tmp_path, Forbidden(proc)) == path


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    target = half_made(tmp_path, "precious")
    (tmp_path / f"NSys-{VERSION}").symlink_to(target)
    assert remove_half_made(VERSION, tmp_path) is None
    assert target.exists()


def test_no_list_is_no_error(tmp_path: Path) -> None:
    assert remove_half_made(VERSION, tmp_path / "absent") is None
