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


def test_the_date_of_the_data_is_stated(tmp_path: Path) -> None:
    folder = package(tmp_path, "dated_tables", system="h100_sxm")
    found = find_by_layout([tmp_path])
    assert found is not None and found.collected is None and "not stated" in found.describe()
    dated = package(tmp_path / "other", "dated_tables", system="h100_sxm")
    for number, day in enumerate(("2026-03-01", "2026-08-31", "2025-12-24")):
        place = dated / "data" / "h100_sxm" / f"gemm{number}" / "vllm" / "0.24"
        place.mkdir(parents=True)
        (place / "collection_meta.yaml").write_text(
            f"collected: {day}T10:00:00\nversion: 2026-99-99\n", encoding="utf-8"
        )
    found = find_by_layout([tmp_path / "other"])
    assert found is not None and found.collected == "2026-08-31" and folder != dated
    assert found.describe() == "dated_tables unknown, collected up to 2026-08-31"


def test_a_stub_without_data_is_not_taken_for_one(tmp_path: Path) -> None:
    package(tmp_path, "aisimulate", system=None)
    (tmp_path / "not-a-package").mkdir()
    assert find_by_layout([tmp_path]) is None


def test_the_installed_tables_have_the_layout() -> None:
    found = installed()
    if found is not None:
        again = find_by_layout([found.systems.parent.parent])
        assert again is not None and again.systems == found.systems
