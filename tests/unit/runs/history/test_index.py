"""The index: what is read, what is not read again, what is left out, and that nothing of others is overwritten."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import polars as pl
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import ConfigError, InputError, LlmPerfError
from llm_perf_opt.runs.history import index as index_module
from llm_perf_opt.runs.history import store
from llm_perf_opt.runs.history.index import renew_index
from tests.unit.runs.history.runs_made import make_run


def _runs(folder: Path) -> list[str]:
    return [row.run for row in store.read_runs(folder)]


def test_runs_and_metrics_are_flattened(tmp_path: Path) -> None:
    make_run(tmp_path, "a", tpot_s=0.01, commit="c" * 40, device_use={"shared": "process 7 used it"})
    make_run(tmp_path, "deep/down/b", tpot_s=0.02)
    done = renew_index(tmp_path)
    assert (done.read, done.unchanged, done.removed, done.info.left_out) == (2, 0, 0, [])
    first, second = store.read_runs(tmp_path)
    assert (first.run, second.run, second.id) == ("a", "deep/down/b", "b")
    assert (first.commit, first.version, first.shared) == ("c" * 40, "1.0", "process 7 used it")
    assert second.shared is None and second.commit is None
    assert first.config_hash == second.config_hash
    assert first.machine == "a processor (2 cores)"
    rows = store.scan_metrics(tmp_path).filter(pl.col("run") == "deep/down/b").collect()
    tpot = {row["statistic"]: row for row in rows.iter_rows(named=True) if row["name"] == "tpot"}
    assert tpot["median"]["value"] == pytest.approx(0.02)
    assert (tpot["median"]["unit"], tpot["median"]["phase"], tpot["n"]["value"]) == ("s", "decode", 3)
    assert done.info.metrics == store.scan_metrics(tmp_path).collect().height


def test_what_did_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcd":
        make_run(tmp_path, name)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "summary.json").write_text('{"loss": 3}', encoding="utf-8")
    renew_index(tmp_path)
    read: list[str] = []
    original = index_module.load_summary
    monkeypatch.setattr(
        index_module, "load_summary", lambda path: (read.append(path.parent.name), original(path))[1]
    )
    before = (tmp_path / store.METRICS).stat().st_mtime_ns
    done = renew_index(tmp_path)
    assert read == [] and done.unchanged == 4 and len(done.info.left_out) == 1
    assert (tmp_path / store.METRICS).stat().st_mtime_ns == before

    make_run(tmp_path, "b", tpot_s=0.5)
    os.utime(tmp_path / "b" / "summary.json")
    (tmp_path / "c" / "summary.json").unlink()
    make_run(tmp_path, "e")
    done = renew_index(tmp_path)
    assert sorted(read) == ["b", "e"]
    assert (done.read, done.unchanged, done.removed) == (2, 2, 1)
    assert _runs(tmp_path) == ["a", "b", "d", "e"]
    medians = (
        store.scan_metrics(tmp_path)
        .filter((pl.col("name") == "tpot") & (pl.col("statistic") == "median"))
        .collect()
    )
    assert sorted(medians["run"]) == ["a", "b", "d", "e"]
    assert medians.filter(pl.col("run") == "b")["value"].item() == pytest.approx(0.5)


def test_what_is_no_run_is_named_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, "good")
    for name, text in (
        ("foreign", '{"loss": 3}'),
        ("torn", '{"run": {"id"'),
        ("list", "[]"),
        ("later", '{"schema_version": "9.0"}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(text, encoding="utf-8")
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "manifest.json").write_text("{", encoding="utf-8")
    (tmp_path / "running" / "config.yaml").write_text("", encoding="utf-8")
    (tmp_path / "other-tool").mkdir()
    (tmp_path / "other-tool" / "events.out").write_bytes(b"\0")
    assert main(["index", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "1 runs" in said and "5 left out" in said
    info = store.read_info(tmp_path)
    assert [entry.path for entry in info.left_out] == ["foreign", "later", "list", "running", "torn"]
    assert "still runs, or was killed" in info.left_out[3].reason
    assert "9.0" in info.left_out[1].reason


def test_rank_directories_are_no_runs_of_their_own(tmp_path: Path) -> None:
    run = make_run(tmp_path, "joined")
    make_run(run, "ranks/0")
    renew_index(tmp_path)
    assert _runs(tmp_path) == ["joined"]


def test_unreadable_parquet_is_kept_and_the_index_made_anew(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    renew_index(tmp_path)
    (tmp_path / store.RUNS).write_bytes(b"PAR1 torn")
    done = renew_index(tmp_path)
    assert "cannot be read as Parquet" in done.notes[0] and "runs.unreadable-1.parquet" in done.notes[0]
    assert (tmp_path / "runs.unreadable-1.parquet").read_bytes() == b"PAR1 torn"
    assert _runs(tmp_path) == ["a"] and done.read == 1


def test_another_tools_parquet_is_not_overwritten(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    for name in (store.RUNS, store.METRICS):
        pl.DataFrame({"theirs": [1]}).write_parquet(tmp_path / name)
    before = (tmp_path / store.RUNS).read_bytes()
    with pytest.raises(ConfigError, match="no file of this index"):
        renew_index(tmp_path)
    assert (tmp_path / store.RUNS).read_bytes() == before
    assert renew_index(tmp_path, tmp_path / "elsewhere").info.runs == 1


def test_two_directories_do_not_share_an_index(tmp_path: Path) -> None:
    make_run(tmp_path / "one", "a")
    make_run(tmp_path / "two", "b")
    renew_index(tmp_path / "one", tmp_path / "index")
    with pytest.raises(InputError, match="holds the index of"):
        renew_index(tmp_path / "two", tmp_path / "index")


def test_writers_at_the_same_time_wait_for_each_other(tmp_path: Path) -> None:
    for number in range(30):
        make_run(tmp_path, f"r{number}")
    failures: list[LlmPerfError | OSError] = []

    def renew() -> None:
        try:
            renew_index(tmp_path)
        except (LlmPerfError, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=renew) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(_runs(tmp_path)) == 30
    assert not list(tmp_path.glob(".index-*")) and not list(tmp_path.glob("*.partial*"))


def test_a_configuration_is_what_is_measured(tmp_path: Path) -> None:
    base = "model:\n  name: tiny\nrun:\n  repeats: {r}\n  threads: {t}\n"
    make_run(tmp_path, "a", config=base.format(r=3, t="null"))
    make_run(tmp_path, "b", config=base.format(r=9, t="null"))
    make_run(tmp_path, "c", config=base.format(r=3, t=1))
    make_run(tmp_path, "d", config=base.format(r=3, t="null") + "  exclusive: false\n")
    make_run(tmp_path, "e", config=base.format(r=3, t="null"), dtype="bfloat16")
    renew_index(tmp_path)
    a, b, c, d, e = (row.config_hash for row in store.read_runs(tmp_path))
    assert a == b == d
    assert len({a, c, e}) == 3
    assert json.loads(store.read_runs(tmp_path)[2].settings) == {"model.name": "tiny", "run.threads": 1}


def test_index_of_what_is_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(tmp_path / "no")]) == 3
    assert "is not a directory" in capsys.readouterr().err
