"""The tables are found by their layout, whatever the package that brings them is called."""

from __future__ import annotations

from pathlib import Path

from llm_perf_opt.hardware.silicon.installation import find_by_layout, installed


def package(place: Path, name: str, *, system: str | None) -> Path:
    folder = place / name / "systems"
    (folder / "data").mkdir(parents=True)
    if system is not None:
        (folder / f"{system}.yaml").write_text("{}", encoding="utf-8")
        (folder / "data" / system).mkdir()
    return folder


def test_a_renamed_package_is_found(tmp_path: Path) -> None:
    package(tmp_path, "empty_stub", system=None)
    folder = package(tmp_path, "renamed_tables", system="h100_sxm")
    found = find_by_layout([tmp_path / "gone", tmp_path])
    assert found is not None
    assert (found.systems, found.package, found.version, found.is_known) == (
        folder,
        "renamed_tables",
        "unknown",
        False,
    )


def test_a_stub_without_data_is_not_taken_for_one(tmp_path: Path) -> None:
    package(tmp_path, "aisimulate", system=None)
    (tmp_path / "not-a-package").mkdir()
    assert find_by_layout([tmp_path]) is None


def test_the_installed_tables_have_the_layout() -> None:
    found = installed()
    if found is not None:
        again = find_by_layout([found.systems.parent.parent])
        assert again is not None and again.systems == found.systems
