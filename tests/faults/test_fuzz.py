"""A few structure-aware inputs for every reader; thousands on demand with ``python -m tests.faults.fuzz``."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_perf_opt.captures.cache import cached
from llm_perf_opt.captures.documents import load_static
from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.captures.ncu.csv import read_ncu_csv
from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite
from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.runs.assemble import assemble_run
from llm_perf_opt.summary.file import load_summary
from tests.faults.fuzz import seeds
from tests.faults.fuzz.readers import READERS, Reader, input_folder
from tests.faults.fuzz.verdict import judge
from tests.unit import kineto_traces, nsys_exports

BY_NAME = {reader.name: reader for reader in READERS}


@pytest.mark.parametrize("reader", READERS, ids=BY_NAME)
@settings(
    max_examples=12, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(chance=st.randoms(use_true_random=False))
def test_no_input_ends_in_a_traceback_or_a_lie(reader: Reader, chance: random.Random, tmp_path: Path) -> None:
    verdict = judge(reader.make(chance, input_folder(tmp_path, 0)))
    assert verdict.kind in ("accepted", "refused"), verdict


# --- what was found: each input once ended in a traceback or an impossible summary --------------------------


def test_one_absurd_time_stamp_does_not_set_the_origin_of_all(tmp_path: Path) -> None:
    events = [kineto_traces.kernel("k", ts, 5.0, 1) for ts in (1.7e15, 1.7e15, 1.7e15, 4e15)]
    path = kineto_traces.write(tmp_path / "t.json", kineto_traces.document(events))
    timeline = read_kineto(path).timeline
    assert timeline.ops.end_ns.tolist() == [1_700_000_000_000_005_000] * 3
    first = kineto_traces.write(tmp_path / "t.json", kineto_traces.document(events[::-1]))
    assert len(read_kineto(first).timeline.ops) == 3


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    header = "ID,Process ID,Kernel Name,Section Name,Metric Name,Metric Unit,Metric Value,Metric Name"
    path = tmp_path / "page.csv"
    path.write_text(f"{header}\n0,1,k,s,Duration,us,23.4\n0,1,k,s,Duration,us,23.4,Duration\n")
    assert len(read_ncu_csv(path).launches) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [("hardware_catalogue", [1]), ("hardware_catalogue", 1.5), ("batch_size", "x"), ("model", {})],
)
def test_facts_of_a_manifest_that_are_something_else(key: str, value: object, tmp_path: Path) -> None:
    manifest = seeds.manifests()[0]
    manifest["facts"][key] = value
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=f"facts.{key}"):
        assemble_run(tmp_path)


@pytest.mark.parametrize(
    "override",
    ["run.repeats=" + "9" * 5000, "dataset={a:1}", "model=[1.5,2]", "run.threads=1e30", "model.seed=-1"],
)
def test_overrides_that_hydra_itself_dies_of(override: str) -> None:
    with pytest.raises(ConfigError):
        compose_config([override])


@pytest.mark.parametrize(("counter", "value"), [("duration_s", -6.75e-6), ("intensity_flops_per_byte", -3.0)])
def test_a_counter_below_zero(counter: str, value: float, tmp_path: Path) -> None:
    document = seeds.summaries()[0]
    document["kernels"][0]["counters"][counter] = value
    (tmp_path / "summary.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=counter):
        load_summary(tmp_path)


@pytest.mark.parametrize(
    "lane", [{"events": []}, {"name": "x", "events": [{"name": "e", "start_s": -1.0, "end_s": 1.0}]}]
)
def test_a_drawing_that_cannot_be_drawn(lane: dict[str, object], tmp_path: Path) -> None:
    document = seeds.summaries()[0]
    document["timeline"]["lanes"] = [lane]
    (tmp_path / "summary.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"timeline\.lanes\[0\]"):
        load_summary(tmp_path)


def test_one_letter_of_a_cached_name_is_damage_too(tmp_path: Path) -> None:
    rows = [nsys_exports.kernel(100, 150, 1, 1)]
    path = nsys_exports.write_export(tmp_path / "e.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": rows}, {1: "gemm"})
    cached(path, read_nsys_sqlite, directory=tmp_path / "cache", smallest=0)
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_bytes(entry.read_bytes().replace(b'"gemm"', b'"gexm"'))
    assert cached(path, read_nsys_sqlite, directory=tmp_path / "cache", smallest=0).names[0] == "gemm"


@pytest.mark.parametrize("metric", ["kernel_time_s", "kernel_launches"])
def test_a_metric_below_zero_whose_name_forbids_it(metric: str, tmp_path: Path) -> None:
    document = seeds.summaries()[0]
    document["metrics"][metric] = -0.8
    (tmp_path / "summary.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=metric):
        load_summary(tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("samples", 0, "ttft_s"), -1.0),
        (("operators", 0, "run_share_ratio"), -0.025),
        (("operators", 0, "run_share_ratio"), 1.4),
        (("hardware", "measurements"), -1),
        (("timings", "repeats"), -1),
    ],
)
def test_a_value_that_was_typed_and_not_limited(
    place: tuple[str | int, ...], value: float, tmp_path: Path
) -> None:
    document = inner = seeds.summaries()[0]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "summary.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=str(place[-1])):
        load_summary(tmp_path)


def test_a_cache_of_next_to_nothing_for_a_position(tmp_path: Path) -> None:
    document = {**seeds.statics()[0], "kv_bytes_per_token": 1e-320}
    (tmp_path / "static_compute.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="kv_bytes_per_token"):
        load_static(tmp_path / "static_compute.json")


def test_a_cache_entry_packed_in_a_way_nobody_uses(tmp_path: Path) -> None:
    rows = [nsys_exports.kernel(100, 150, 1, 1)]
    path = nsys_exports.write_export(tmp_path / "e.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": rows}, {1: "gemm"})
    for offset, damage in ((8, b"\x63\x00"), (6, b"\x01\x00")):  # a method of packing; a password
        cached(path, read_nsys_sqlite, directory=tmp_path / "cache", smallest=0)
        (entry,) = (tmp_path / "cache").iterdir()
        content = bytearray(entry.read_bytes())
        for at in _members(bytes(content), b"PK\x03\x04", offset) + _members(
            bytes(content), b"PK\x01\x02", offset + 2
        ):
            content[at : at + 2] = damage
        entry.write_bytes(content)
        assert cached(path, read_nsys_sqlite, directory=tmp_path / "cache", smallest=0).names[0] == "gemm"


def _members(content: bytes, mark: bytes, offset: int) -> list[int]:
    """Return the place of one field in every header of an archive."""
    return [at + offset for at in range(len(content)) if content.startswith(mark, at)]


def test_a_row_longer_than_a_header_without_rules(tmp_path: Path) -> None:
    header = "ID,Process ID,Kernel Name,Section Name,Metric Name,Metric Unit,Metric Value"
    path = tmp_path / "page.csv"
    path.write_text(f"{header}\n0,1,k,s,Duration,us,23.4,more,still more\n0,1,k,s,Other,us,{2**64}000\n")
    metrics = read_ncu_csv(path).launches[0].metrics
    assert [quantity.value for quantity in metrics.values()] == [pytest.approx(23.4e-6), None]
