"""Summaries of other releases: the same major version is read, and what it means differently is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.origin import Side
from llm_perf_opt.compare.command import main as compare_main
from llm_perf_opt.compare.compare import compare
from llm_perf_opt.core import layout
from llm_perf_opt.core.errors import InputError
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.runs.finish import report_run
from llm_perf_opt.summary import SCHEMA_VERSION
from llm_perf_opt.summary.codec import to_plain
from llm_perf_opt.summary.file import (
    OLDER_MEANINGS,
    is_readable,
    load_summary,
    older_note,
    parse_version,
    save_summary,
)
from tests.unit.report_summaries import full_summary

OLD_NOTE = older_note("1.0") or ""


def written(folder: Path, version: Any, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    document = {**to_plain(full_summary()), "schema_version": version, **changes}
    atomic_write_json(folder / layout.SUMMARY, document)
    return folder


def test_our_own_version_is_read_without_a_word(tmp_path: Path) -> None:
    summary = full_summary()
    assert summary.schema_version == SCHEMA_VERSION == "1.1"
    save_summary(summary, tmp_path)
    assert load_summary(tmp_path) == summary


def test_an_older_minor_version_is_read_with_a_note_of_what_differs(tmp_path: Path) -> None:
    folder = written(tmp_path, "1.0")
    document = to_plain(full_summary())
    del document["repeat_spread"], document["metrics"]
    atomic_write_json(folder / layout.SUMMARY, {**document, "schema_version": "1.0"})
    summary = load_summary(folder)
    assert summary.notes[0] == OLD_NOTE
    assert (summary.repeat_spread, summary.metrics) == ({}, {})
    assert summary.schema_version == "1.0", "its values are still those of 1.0"
    save_summary(summary, folder)
    assert load_summary(folder).notes.count(OLD_NOTE) == 1


def test_a_newer_minor_version_is_read_without_what_it_adds(tmp_path: Path) -> None:
    folder = written(tmp_path, "1.99", added={"by": "a later release"})
    summary = load_summary(folder)
    assert summary.notes == full_summary().notes
    assert "added" not in to_plain(summary)


@pytest.mark.parametrize("version", ["0.9", "2.0", "10.0", "", "x", "1.x", "-1.0", "١.0", None, 1.1, [1, 1]])
def test_another_major_version_is_refused_with_a_way_out(version: Any, tmp_path: Path) -> None:
    folder = written(tmp_path, version, timings="of a shape this program does not know")
    with pytest.raises(
        InputError, match=f"has schema version .*this program reads {SCHEMA_VERSION}"
    ) as caught:
        load_summary(folder)
    assert "--reanalyse" in str(caught.value.hint)
    assert str(folder) in caught.value.message


def test_a_file_that_is_no_summary_is_refused(tmp_path: Path) -> None:
    atomic_write_json(tmp_path / layout.SUMMARY, [1])
    with pytest.raises(InputError, match=rf"{re.escape(str(tmp_path / layout.SUMMARY))}.*\blist\b"):
        load_summary(tmp_path)
    atomic_write_json(tmp_path / layout.SUMMARY, {"timings": {}})
    with pytest.raises(InputError, match="has schema version None"):
        load_summary(tmp_path)


def test_damage_is_found_by_file_and_key(tmp_path: Path) -> None:
    document = to_plain(full_summary())
    document["timings"]["ttft_s"]["median"] = "fast"
    path = atomic_write_json(tmp_path / layout.SUMMARY, document)
    with pytest.raises(InputError) as caught:
        load_summary(tmp_path)
    place, _, what = caught.value.message.partition(": ")
    assert place == f"{path}.timings.ttft_s.median" and "number" in what and what.endswith("str")


def test_report_and_compare_take_an_older_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "old", "1.0")
    assert report_run(folder, reanalyse=False, as_json=False) == 0
    assert OLD_NOTE in (folder / "report.md").read_text(encoding="utf-8")
    save_summary(full_summary(), written(tmp_path / "new", SCHEMA_VERSION))
    assert compare_main([str(folder), str(tmp_path / "new")]) == 0
    assert f"A: {OLD_NOTE}" in " ".join(capsys.readouterr().out.split())


def test_compare_names_the_side_that_is_older() -> None:
    new, old = full_summary(), full_summary()
    old.schema_version = "1.0"
    notes = compare(Side("a", ["a"], [new], [None]), Side("b", ["b"] * 2, [old] * 2, [None] * 2)).notes
    assert [note for note in notes if "schema" in note] == [f"B: {OLD_NOTE}"]


def test_every_changed_meaning_is_in_the_note() -> None:
    versions = [parse_version(version) for version in (*OLDER_MEANINGS, SCHEMA_VERSION)]
    assert versions == sorted(version for version in versions if version is not None)
    assert older_note(SCHEMA_VERSION) is None
    assert "1.0" in OLD_NOTE
    for meanings in OLDER_MEANINGS.values():
        assert meanings and all(meaning in OLD_NOTE for meaning in meanings)
    assert is_readable("1")
