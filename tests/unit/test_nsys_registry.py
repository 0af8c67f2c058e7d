"""Session lists that a killed nsys leaves in shared memory: removed when dead, left alone when in use."""

from __future__ import annotations

import mmap
from pathlib import Path

from llm_perf_opt.profiling.vendor.nsys_registry import remove_dead_registries


def test_a_dead_list_is_removed_and_nothing_else(tmp_path: Path) -> None:
    dead, other = tmp_path / "NSys-2022.4.2.1", tmp_path / "sem.nsys_sem_12"
    dead.write_bytes(b"\1")
    other.write_bytes(b"\0")
    assert remove_dead_registries(tmp_path) == [dead]
    assert list(tmp_path.iterdir()) == [other]


def test_a_list_that_a_process_has_mapped_stays(tmp_path: Path) -> None:
    used = tmp_path / "NSys-2022.4.2.1"
    used.write_bytes(bytes(4096))
    with used.open("r+b") as stream, mmap.mmap(stream.fileno(), 4096):
        assert remove_dead_registries(tmp_path) == []
        assert used.exists()
    assert remove_dead_registries(tmp_path) == [used]


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "NSys-1").symlink_to(target)
    assert remove_dead_registries(tmp_path) == []
    assert target.read_text() == "kept"


def test_no_shared_memory_is_no_error(tmp_path: Path) -> None:
    assert remove_dead_registries(tmp_path / "absent") == []
