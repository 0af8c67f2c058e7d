"""The index: what is read, what is not read again, what is left out, and that nothing of others is overwritten."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import polars as pl
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.errors import ConfigError, InputError, LlmPerfError
from llm_perf_opt.history import index as index_module
from llm_perf_opt.history import store
from llm_perf_opt.history.baseline import differences
from llm_perf_opt.history.index import open_index, renew_index
from llm_perf_opt.summary import codec
from tests.unit.history.runs_made import make_run, read_runs


def _runs(folder: Path) -> list[str]:
    return [row.run for row in read_runs(folder)]


def test_runs_and_metrics_are_flattened(tmp_path: Path) -> None:
    make_run(tmp_path, "a", tpot_s=0.01, commit="c" * 40, device_use={"shared": "process 7 used it"})
    make_run(tmp_path, "deep/down/b", tpot_s=0.02)
    done = renew_index(tmp_path)
    assert (done.read, done.unchanged, done.removed, done.info.left_out) == (2, 0, 0, [])
    first, second = read_runs(tmp_path)
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
    output = capsys.readouterr().out
    assert "1 runs" in output and "5 left out" in output
    info = store.read_info(tmp_path)
    assert [entry.path for entry in info.left_out] == ["foreign", "later", "list", "running", "torn"]
    assert "summary.json" in info.left_out[3].reason, "a run without one: it is not over"
    assert "9.0" in info.left_out[1].reason


def test_what_could_not_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "a")
    with monkeypatch.context() as broken:
        broken.setattr(codec, "read_document", _stale_handle)
        (entry,) = renew_index(tmp_path).info.left_out
    assert "Stale file handle" in entry.reason
    done = renew_index(tmp_path)
    assert _runs(tmp_path) == ["a"] and done.info.left_out == []


def _stale_handle(path: Path) -> bytes:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))


def test_an_index_of_another_release_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "a")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "summary.json").write_text('{"schema_version": "9.0"}', encoding="utf-8")
    renew_index(tmp_path)
    assert renew_index(tmp_path).read == 0
    monkeypatch.setattr(index_module, "__version__", "99.0")
    done = renew_index(tmp_path)
    assert (done.read, done.info.version) == (2, "99.0")
    assert renew_index(tmp_path).read == 0


def test_an_index_with_other_columns_is_set_aside_where_it_is_ours(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    renew_index(tmp_path)
    pl.read_parquet(tmp_path / store.RUNS).drop("commit").write_parquet(tmp_path / store.RUNS)
    done = renew_index(tmp_path)
    assert "another release" in done.notes[0] and (tmp_path / "runs.earlier-1.parquet").is_file()
    assert _runs(tmp_path) == ["a"] and done.read == 1


def test_a_tree_may_be_reached_by_another_path(tmp_path: Path) -> None:
    make_run(tmp_path / "tree", "a")
    make_run(tmp_path / "tree", "b", day=2)
    (tmp_path / "link").symlink_to(tmp_path / "tree")
    renew_index(tmp_path / "tree")
    done = renew_index(tmp_path / "link")
    assert (done.read, done.unchanged, done.info.directory) == (0, 2, str(tmp_path / "link"))
    _, info, _ = open_index(tmp_path / "tree", renew=False)
    assert info.directory == str(tmp_path / "tree")
    # The run itself is no baseline of its own, by whatever path it is named.
    b = str(tmp_path / "tree" / "b")
    assert main(["compare", b, "--baseline", "latest", "--index", str(tmp_path / "link")]) == 0
    shutil.rmtree(tmp_path / "tree" / "a")
    assert main(["compare", b, "--baseline", "latest", "--index", str(tmp_path / "link")]) == 3


def test_another_tools_summary_does_not_hide_the_runs_below_it(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"loss": 3}', encoding="utf-8")
    make_run(tmp_path, "a")
    make_run(tmp_path, "deep/down/b")
    (tmp_path / "deep" / "summary.json").write_text('{"loss": 3}', encoding="utf-8")
    torn = make_run(tmp_path, "torn")
    (torn / "summary.json").write_text("{", encoding="utf-8")
    (torn / "manifest.json").write_text("{}", encoding="utf-8")
    make_run(torn, "ranks/0")  # a damaged run of ours is a run: its ranks are none
    for read in (5, 0):  # the second time what is refused is known, and what lies below it too
        done = renew_index(tmp_path)
        assert _runs(tmp_path) == ["a", "deep/down/b"]
        assert [entry.path for entry in done.info.left_out] == [".", "deep", "torn"]
        assert done.read == read


def test_a_run_whose_name_is_not_text_is_named(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    (tmp_path / os.fsdecode(b"caf\xe9")).mkdir()
    (entry,) = renew_index(tmp_path).info.left_out
    assert entry.path == "caf\\xe9" and "UTF-8" in entry.reason


def test_memory_does_not_hold_a_row_for_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is larger than the limit, and runs that did not change are never made Python objects."""
    monkeypatch.setattr(index_module, "_BATCH", 3)
    for number in range(8):
        make_run(tmp_path, f"r{number}")
    frames: list[int] = []
    original = store.frame
    monkeypatch.setattr(
        store, "frame", lambda rows, columns: (frames.append(len(rows)), original(rows, columns))[1]
    )
    renew_index(tmp_path)
    assert [count for count in frames if count in (2, 3)] == [3, 3, 2]
    assert _runs(tmp_path) == [f"r{number}" for number in range(8)]
    shutil.rmtree(tmp_path / "r0")
    monkeypatch.setattr(store, "RunRow", None)
    monkeypatch.setattr(index_module, "run_row", None)
    assert renew_index(tmp_path).info.runs == 7


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
    assert str(tmp_path / store.RUNS) in done.notes[0] and "runs.unreadable-1.parquet" in done.notes[0]
    assert (tmp_path / "runs.unreadable-1.parquet").read_bytes() == b"PAR1 torn"
    assert _runs(tmp_path) == ["a"] and done.read == 1


def test_another_tools_parquet_is_not_overwritten(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    for name in (store.RUNS, store.METRICS):
        pl.DataFrame({"theirs": [1]}).write_parquet(tmp_path / name)
    before = (tmp_path / store.RUNS).read_bytes()
    with pytest.raises(ConfigError) as refused:
        renew_index(tmp_path)
    assert refused.value.data["path"] == str(tmp_path / store.RUNS) and "--out DIR" in str(refused.value.hint)
    assert (tmp_path / store.RUNS).read_bytes() == before
    assert renew_index(tmp_path, tmp_path / "elsewhere").info.runs == 1


def test_two_directories_do_not_share_an_index(tmp_path: Path) -> None:
    make_run(tmp_path / "one", "a")
    make_run(tmp_path / "two", "b")
    renew_index(tmp_path / "one", tmp_path / "index")
    with pytest.raises(InputError) as refused:
        renew_index(tmp_path / "two", tmp_path / "index")
    assert refused.value.data["path"] == str(tmp_path / "index") and "--out DIR" in str(refused.value.hint)
    assert str(tmp_path / "one") in refused.value.message and str(tmp_path / "two") in refused.value.message


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
    a, b, c, d, e = (row.config_hash for row in read_runs(tmp_path))
    assert a == b == d
    assert len({a, c, e}) == 3
    assert json.loads(read_runs(tmp_path)[2].settings) == {"model.name": "tiny", "run.threads": 1}


def test_ranks_are_counted_as_they_were_not_as_they_were_set(tmp_path: Path) -> None:
    """Under ``torchrun`` ``run.ranks`` stays 1: only the summary says how many there were."""
    base = "model:\n  name: tiny\nrun:\n  ranks: {}\n"
    make_run(tmp_path, "a", config=base.format(1))
    make_run(tmp_path, "b", config=base.format(1), ranks=2)
    make_run(tmp_path, "c", config=base.format(2) + "  ranks_timeout_s: 9\n", ranks=2, day=2)
    make_run(tmp_path, "d", config=base.format(1), ranks=4)
    renew_index(tmp_path)
    a, b, c, d = read_runs(tmp_path)
    assert b.config_hash == c.config_hash
    assert len({a.config_hash, b.config_hash, d.config_hash}) == 3
    assert differences(a, b) == ["workload.ranks: the default → 2"]


def test_index_of_what_is_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(tmp_path / "no")]) == 3
    assert "is not a directory" in capsys.readouterr().err


def test_every_load_point_of_a_server_has_rows() -> None:
    from llm_perf_opt.history.rows import metric_rows
    from llm_perf_opt.summary import Hardware, LatencyStat, LoadPoint, RunInfo, Serving, Summary, Workload

    points = [
        LoadPoint(
            "open", rate, ttft_s=LatencyStat(p50=0.1, p99=rate), completed_per_s=rate, client_bound=rate > 9
        )
        for rate in (2.0, 4.0, 10.0)
    ]
    summary = Summary(
        RunInfo("r", "ok", "2026-01-01T10:00:00+00:00", 2.0, []), {}, Hardware("c", "cpu", {}, None, "none"),
        Workload(), serving=Serving(load=points),
    )  # fmt: skip
    rows = {(row.name, row.phase): (row.value, row.unit) for row in metric_rows(summary, "r")}
    assert rows["ttft_p99", "open 2"] == (2.0, "s")
    assert rows["requests_per_s", "open 4"] == (4.0, "1/s")
    assert not any(phase == "open 10" for _, phase in rows)
