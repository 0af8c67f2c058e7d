"""Remedies: where they apply, what they set, how they are chosen; every built-in one composes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.analysis.findings import rank_findings
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.hardware.sensors.base import Reading
from llm_perf_opt.improve import configurations
from llm_perf_opt.improve import plan as measurable
from llm_perf_opt.improve.configurations import merged, needs_own_process, other_work
from llm_perf_opt.improve.improve import Request, make_plan
from llm_perf_opt.improve.plan import plan
from llm_perf_opt.improve.show_plan import describe_combinations
from llm_perf_opt.remedies import conditions
from llm_perf_opt.remedies.base import Machine, Situation, conflicting_key, own_remedy
from llm_perf_opt.remedies.built_in import BUILT_IN
from llm_perf_opt.remedies.data import SearchSettings
from llm_perf_opt.remedies.registry import load_remedies
from llm_perf_opt.summary import Finding


@functools.cache
def _composed(overrides: tuple[str, ...]) -> AppConfig:
    return configurations.composed(overrides)


def composed(overrides: Sequence[str]) -> AppConfig:
    """Compose once what several tests ask for; none of them changes it."""
    return _composed(tuple(overrides))


BY_NAME = {remedy.name: remedy for remedy in BUILT_IN}


def situation(
    *overrides: str, metric: Any = "total", cpus: int = 8, root: Path = Path("/nonexistent"), **more: Any
) -> Situation:
    return Situation(
        config=composed(overrides),
        metric=metric,
        machine=Machine(cpus=cpus, root=root),
        phases=("prefill", "decode"),
        **more,
    )


def test_every_setting_of_every_remedy_composes(tmp_path: Path) -> None:
    library = tmp_path / "usr" / "lib" / "x" / "libjemalloc.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    pages = tmp_path / "sys" / "kernel" / "mm" / "transparent_hugepage" / "enabled"
    pages.parent.mkdir(parents=True)
    pages.write_text("always [madvise] never\n")
    known = situation(metric="tokens_per_s", root=tmp_path, samples=8, mixture=True)
    known.phases = ("vision", "prefill", "decode")
    # Those that need a GPU; and guesses, which exclude batches and static caches and are composed below.
    apart = ("cuda-graphs", "compile-graphs", "prompt-lookup", "draft-model")
    chosen = [remedy.options(known) for remedy in BUILT_IN if remedy.name not in apart]
    assert sum(map(len, chosen)) > 30
    # As few compositions as the keys allow: the settings at one place of all remedies go together.
    for place in range(max(map(len, chosen))):
        together: list[str] = []
        for options in chosen:
            together = merged(together, options[place]) if place < len(options) else together
        composed(together)
    composed(BY_NAME["prompt-lookup"].options(known)[0])
    composed(["model.draft_path=/models/small", *BY_NAME["draft-model"].options(known)[0]])


def test_the_variables_that_are_meant_reach_the_configuration() -> None:
    env = composed(
        [
            item
            for name in ("malloc-arenas", "huge-pages", "omp-wait")
            for item in BY_NAME[name].options(situation())[0]
        ]
    ).run.env
    assert env == {
        "MALLOC_ARENA_MAX": "2",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "OMP_WAIT_POLICY": "ACTIVE",
    }


@pytest.mark.parametrize(
    ("name", "overrides", "more", "reason"),
    [
        ("compile-vision", ["model=llama_tiny"], {}, "vision"),
        ("prefill-experts", ["model=llama_tiny"], {"mixture": False}, "experts"),
        ("decode-threads", ["model=llama_tiny", "infer.max_new_tokens=1"], {}, "decode"),
        ("half-precision-cache", ["model=llama_tiny", "model.dtype=bfloat16"], {}, "half precision"),
        ("half-precision-cache", ["model=llama_tiny", "model.cache_dtype=float8"], {}, "float8"),
        ("eight-bit-cache", ["model=llama_tiny", "model.cache_dtype=float8"], {}, "set already"),
        ("length-buckets", ["model=llama_tiny"], {}, "padded"),
        ("length-buckets", ["model=llama_tiny", "infer.batch_size=2"], {"samples": 2}, "batch"),
        ("expandable-segments", ["model=llama_tiny"], {}, "no GPU"),
        ("compile-decode", ["model=llama_tiny", "infer.max_new_tokens=1"], {}, "decode"),
        (
            "compile-decode",
            ["model=llama_tiny", "model.compile=true", "model.cache=static"],
            {},
            "compiled",
        ),
        ("preallocated-cache", ["model=llama_tiny", "model.cache=static"], {}, "grow"),
        ("half-precision", ["model=llama_tiny", "model.dtype=float16"], {}, "already"),
        ("batch-size", ["model=llama_tiny"], {}, "--metric tokens_per_s"),
        ("batch-size", ["model=llama_tiny"], {"metric": "tokens_per_s", "samples": 1}, "samples"),
        ("threads", ["model=llama_tiny"], {"cpus": 1}, "processor"),
        ("pinned-inputs", ["model=llama_tiny"], {}, "copied"),
        ("cuda-graphs", ["model=llama_tiny"], {}, "no GPU"),
        ("compile-graphs", ["model=llama_tiny"], {}, "no GPU"),
        ("tf32", ["model=llama_tiny"], {}, "no GPU"),
        ("cudnn-benchmark", ["model=llama_tiny"], {}, "no GPU"),
        ("compile-freezing", ["model=llama_tiny", "infer.max_new_tokens=1"], {}, "decode"),
        ("allocator", ["model=llama_tiny"], {}, "tcmalloc"),
        ("huge-pages", ["model=llama_tiny"], {}, "huge pages"),
        ("sdpa-backend", ["model=llama_tiny", "model.attn_implementation=eager"], {}, "eager"),
        ("prompt-lookup", ["model=llama_tiny", "infer.batch_size=2"], {}, "batch_size=1"),
        ("prompt-lookup", ["model=llama_tiny", "model.cache=static"], {}, "static"),
        ("prompt-lookup", ["model=llama_tiny", "infer.prompt_lookup_tokens=4"], {}, "already"),
        ("draft-model", ["model=llama_tiny"], {}, "model.draft_path"),
        ("binding", ["model=llama_tiny"], {}, "NUMA"),
        ("binding", ["model=llama_tiny", "run.affinity='0'"], {}, "already"),
        ("tensor-parallel", ["model=llama_tiny"], {}, "no GPU"),
        ("another-engine", ["model=llama_tiny"], {}, "model.path"),
        ("power-limit", ["model=llama_tiny"], {}, "no GPU"),
        ("vision-overlap", ["model=llama_tiny"], {}, "vision"),
        ("compile-prefill", ["model=llama_tiny", "model.compile_prefill=true"], {}, "already"),
    ],
)
def test_a_remedy_gives_the_reason_why_it_does_not_apply(
    name: str, overrides: list[str], more: dict[str, Any], reason: str
) -> None:
    planned = plan([BY_NAME[name]], situation(*overrides, **more))
    assert planned.candidates == []
    assert reason in planned.not_tried[0].reason


def test_nothing_is_compiled_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "missing_compiler", lambda device: "g++")
    compiling = [remedy for remedy in BUILT_IN if remedy.name.startswith("compile-")]
    known = situation()
    known.phases = ("vision", "prefill", "decode")
    planned = plan(compiling, known)
    assert planned.candidates == []
    reasons = {one.remedy: one.reason for one in planned.not_tried if one.remedy != "compile-graphs"}
    assert len(reasons) == 6 and all("g++" in reason for reason in reasons.values())


def test_threads_are_halved_and_batches_doubled() -> None:
    assert BY_NAME["threads"].options(situation(cpus=8)) == [
        ["run.threads=4"],
        ["run.threads=2"],
        ["run.threads=1"],
    ]
    assert BY_NAME["decode-threads"].options(situation("run.threads=4", cpus=4)) == [
        ["run.phase_threads.decode=2"],
        ["run.phase_threads.decode=1"],
    ]
    sizes = BY_NAME["batch-size"].options(situation("model=llama_tiny", samples=6))
    assert sizes == [["infer.batch_size=2"], ["infer.batch_size=4"], ["infer.batch_size=6"]]


def test_decode_and_prefill_have_experts_and_threads_of_their_own() -> None:
    chosen = ["model=qwen_moe_tiny", "model.experts_implementation=eager", "run.phase_threads.decode=1"]
    config = composed([*chosen, "model.prefill_experts_implementation=grouped_mm"])
    assert config.run.phase_threads == {"decode": 1}
    options = BY_NAME["decode-experts"].options(situation(*chosen))
    assert ["model.decode_experts_implementation=eager"] not in options
    with pytest.raises(ConfigError) as unknown:
        composed(["run.phase_threads.decoding=1"])
    assert unknown.value.data["key"] == "run.phase_threads.decoding"
    assert "prefill, decode" in (unknown.value.hint or "")
    with pytest.raises(ConfigError, match=r"run\.phase_threads\.decode=0\b") as too_few:
        composed(["run.phase_threads.decode=0"])
    assert too_few.value.data["key"] == "run.phase_threads.decode"


def test_only_what_is_named_or_answers_a_finding() -> None:
    names = {
        c.remedy.name
        for c in plan(BUILT_IN, situation("model=llama_tiny"), ["growing-cache:decode"]).candidates
    }
    assert names == {"preallocated-cache"}
    with pytest.raises(ConfigError, match="'growing-cash'") as error:
        plan(BUILT_IN, situation("model=llama_tiny"), ["growing-cash"])
    assert "growing-cache" in (error.value.hint or "")


def test_other_work_is_seen() -> None:
    base = composed(["model=llama_tiny"])
    for override in (
        "infer.max_new_tokens=3",
        "dataset.synthetic_count=1",
        "infer.ignore_eos=false",
        "model.seed=1",
    ):
        assert override.partition("=")[0] in (
            other_work(base, composed(merged(["model=llama_tiny"], [override])), "quality") or ""
        )
    page, smaller = composed([]), composed(["infer.mode=tiny"])
    assert other_work(page, smaller, "quality") is None
    assert "quality" in (other_work(page, smaller, "rounding") or "")
    assert other_work(base, composed(["model=llama_tiny", "run.threads=1"]), "nothing") is None


def test_settings_of_a_process_need_processes_of_their_own() -> None:
    base = composed(["model=llama_tiny"])
    assert needs_own_process(base, composed(["model=llama_tiny", "run.env.OMP_WAIT_POLICY=ACTIVE"]))
    assert needs_own_process(base, composed(["model=llama_tiny", "run.interop_threads=1"]))
    assert not needs_own_process(base, composed(["model=llama_tiny", "run.threads=1"]))


def test_a_remedy_of_the_users_own() -> None:
    assert own_remedy("run.threads=1 model.dtype=bfloat16").options(situation()) == [
        ["run.threads=1", "model.dtype=bfloat16"]
    ]
    assert own_remedy("infer.mode=tiny").effect == "quality"
    with pytest.raises(ConfigError, match=r"--try 'run\.threads'"):
        own_remedy("run.threads")
    with pytest.raises(ConfigError, match=r"--try run\.threads='1") as unclosed:
        own_remedy("run.threads='1")
    assert isinstance(unclosed.value.__cause__, ValueError), "as the shell's own rules say"


def test_names_are_unique_and_two_models_may_not_fit() -> None:
    remedies = load_remedies()[0]
    assert len({remedy.name for remedy in remedies}) == len(remedies)
    tight = situation("model=llama_tiny", weight_bytes=100)
    assert not plan(BUILT_IN, tight).two_do_not_fit
    tight.machine = dataclasses.replace(tight.machine, memory_bytes=200)
    assert plan(BUILT_IN, tight).two_do_not_fit


def test_before_the_baseline_the_adapter_gives_the_phases(tmp_path: Path) -> None:
    """Nothing is known of the model yet: what cannot be excluded is planned."""
    sees, reads = (
        Situation(config=composed([f"model={name}"]), metric="total", machine=Machine(cpus=2, root=tmp_path))
        for name in ("deepseek_ocr", "llama_tiny")
    )

    assert conditions.sees_nothing(sees) is None
    assert "vision" in (conditions.sees_nothing(reads) or "")
    assert conditions.no_experts(sees) is None


def test_what_answers_the_first_finding_is_tried_first() -> None:
    """In the order in which a report names them, also where two promise the same."""
    found = rank_findings(
        Finding(name, name, "decode", [], gain, "", "", "high")
        for name, gain in (
            ("growing-cache", 0.1),
            ("dispatch", 0.3),
            ("module-gap", 0.3),
            ("host-sync", None),
        )
    )
    tried = plan(BUILT_IN, situation("model=llama_tiny", findings=found)).candidates
    answered = [
        each.finding.id for each in tried if each.finding is not None and each.remedy.effect != "quality"
    ]
    places = [[finding.id for finding in found].index(name) for name in answered]
    assert places[0] == 0
    assert places == sorted(places)


@pytest.mark.parametrize("message", [None, 5.0])
def test_energy_is_refused_where_no_sensor_reports_it(
    message: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class _Sensor:
        absent = {} if message is not None else {"energy_j": "energy_uj: root only"}

        def read(self) -> Reading:
            return Reading(energy_j=message)

        def close(self) -> None:
            pass

    monkeypatch.setattr(measurable, "find_sensor", lambda _: _Sensor())
    request = Request(
        overrides=["model=llama_tiny"], metric="energy", settings=SearchSettings(only=["threads"])
    )
    if message is not None:
        assert make_plan(request, None, Machine(cpus=4)).candidates
        return
    with pytest.raises(ConfigError, match=r"--metric energy: cpu\b.*energy_uj: root only"):
        make_plan(request, None, Machine(cpus=4))


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("compile-vision", ["model.compile_vision=true"]),
        ("channels-last", ["model.channels_last=true"]),
        ("interop-threads", ["run.interop_threads=1"]),
        ("omp-wait", ["run.env.OMP_WAIT_POLICY=ACTIVE"]),
        ("malloc-arenas", ["run.env.MALLOC_ARENA_MAX='2'"]),
        ("affinity", ["run.env.OMP_PROC_BIND='true'", "run.env.OMP_PLACES=cores"]),
        ("compile-all", ["model.compile=true", "model.cache=static", "model.compile_vision=true"]),
    ],
)
def test_what_is_set_already_is_not_tried_against_itself(name: str, overrides: list[str]) -> None:
    known = situation(*overrides)
    known.phases = ("vision", "prefill", "decode")
    planned = plan([BY_NAME[name]], known)
    assert planned.candidates == []
    assert [(item.remedy, item.reason) for item in planned.not_tried] == [(name, "set already")]


def test_a_finding_of_a_phase_that_the_metric_does_not_contain_promises_nothing() -> None:
    found = [
        Finding("dispatch", "", "decode", [], 0.9, "", "", "high"),
        Finding("vision-dominated-ttft", "", "vision", [], 0.1, "", "", "high"),
    ]
    first = {}
    for metric in ("total", "ttft"):
        known = situation(metric=metric, findings=found)
        known.phases = ("vision", "prefill", "decode")
        first[metric] = plan(BUILT_IN, known).candidates[0].remedy.name
    assert first == {"total": "compile-decode", "ttft": "compile-vision"}


def test_another_number_of_ranks_and_a_program_of_ones_own_are_refused() -> None:
    one = composed(["model=llama_tiny"])
    assert "run.ranks=2" in (other_work(one, composed(["model=llama_tiny", "run.ranks=2"]), "rounding") or "")
    with pytest.raises(ConfigError) as own:
        make_plan(Request(overrides=["pipeline.workload.command=[sleep,1]"]), None, Machine(cpus=2))
    assert own.value.data["key"] == "pipeline.workload.command"


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        ("model.cache_dtype=float8", "quality"),
        ("model.cache_dtype=bfloat16", "rounding"),
        ("model.quantise_weights=int4", "quality"),
        ("infer.mode=tiny", "quality"),
        ("run.threads=1 +model.cache_dtype=float8", "quality"),
    ],
)
def test_own_settings_that_may_make_answers_worse_are_left_to_the_user(text: str, effect: str) -> None:
    assert own_remedy(text).effect == effect


def test_only_modes_that_the_model_has_are_tried() -> None:
    def modes(*overrides: str) -> list[str]:
        known = situation(*overrides)
        known.phases = ("vision", "prefill", "decode")
        planned = plan([BY_NAME["image-mode"]], known)
        return [item for each in planned.candidates for item in each.overrides]

    assert modes("model=deepseek_ocr") == [
        f"infer.mode={name}" for name in ("large", "base", "small", "tiny")
    ]
    assert modes("model=deepseek_ocr2") == ["infer.mode=base"]


def test_two_models_may_not_fit_on_any_device() -> None:
    known = situation(weight_bytes=14 << 30)
    known.machine = Machine(cpus=2, memory_bytes=24 << 30)
    known.config = dataclasses.replace(known.config, resolved_device="cuda")
    assert plan([], known).two_do_not_fit


def test_the_plan_of_the_default_workload_on_a_gpu_has_compiling_with_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device is only said to be there: nothing of a plan runs on it."""
    known = situation(mixture=False)
    known.config = dataclasses.replace(known.config, resolved_device="cuda:0")
    monkeypatch.setattr(conditions, "missing_compiler", lambda _device: None)
    planned = plan(BUILT_IN, known)
    by_name = {candidate.remedy.name: set(candidate.overrides) for candidate in planned.candidates}
    assert by_name["compile-graphs"] == {
        "model.compile=true",
        "model.cuda_graphs=true",
        "model.cache=static",
    }
    excluded = [line for line in describe_combinations(planned, "nothing") if "model.cache)" in line]
    assert len(excluded) == 1, "a growing cache excludes the static one; nothing else is about that key"
    one, two = by_name["compile-decode"], by_name["cuda-graphs"]
    assert conflicting_key(one, two) is None
    assert conflicting_key(one, by_name["preallocated-cache"]) == "model.cache"


def test_what_cannot_change_the_metric_takes_no_share_of_the_error() -> None:
    known = situation(metric="ttft")
    known.config = dataclasses.replace(known.config, resolved_device="cuda:0")
    planned = plan([BY_NAME["pinned-inputs"]], known)
    assert planned.candidates == [] and "ttft" in planned.not_tried[0].reason
    known.metric = "energy"
    assert len(plan([BY_NAME["pinned-inputs"]], known).candidates) == 1


def test_an_unknown_key_of_ones_own_remedy_is_refused_before_the_baseline(tmp_path: Path) -> None:
    request = Request(["model=llama_tiny"], settings=SearchSettings(own=["model.cach=static"]))
    with pytest.raises(ConfigError) as caught:
        make_plan(request, None, Machine(cpus=2))
    assert "model.cach" in str(caught.value)


def test_a_remedy_of_a_phase_outside_the_metric_takes_no_share_of_the_error() -> None:
    first = plan(BUILT_IN, situation("model=llama_tiny", metric="ttft"))
    tried = {candidate.remedy.name for candidate in first.candidates}
    reasons = {one.remedy: one.reason for one in first.not_tried}
    assert not tried & {"prompt-lookup", "preallocated-cache", "decode-threads", "compile-decode"}
    assert reasons["preallocated-cache"] == "--metric ttft does not contain decode"
    per_token = plan(BUILT_IN, situation("model=llama_tiny", metric="tpot"))
    assert "compile-prefill" in {one.remedy for one in per_token.not_tried}
    assert "prompt-lookup" in {candidate.remedy.name for candidate in per_token.candidates}
    assert first.tests < plan(BUILT_IN, situation("model=llama_tiny")).tests


def test_advice_is_listed_with_its_command_and_never_tried(tmp_path: Path) -> None:
    pages = tmp_path / "sys" / "kernel" / "mm" / "transparent_hugepage" / "enabled"
    pages.parent.mkdir(parents=True)
    pages.write_text("always madvise [never]\n")
    on_cpu = plan([BY_NAME["system-huge-pages"]], situation("model=llama_tiny", root=tmp_path))
    assert (on_cpu.candidates, on_cpu.tests) == ([], plan([], situation("model=llama_tiny")).tests)
    assert "echo madvise" in on_cpu.not_tried[0].reason
    pages.write_text("always [madvise] never\n")
    assert "already" in plan([BY_NAME["system-huge-pages"]], situation(root=tmp_path)).not_tried[0].reason
    gpu = situation("model=llama_tiny", metric="tokens_per_s")
    gpu.config = dataclasses.replace(gpu.config, resolved_device="cuda:0")
    gpu.machine, gpu.phases = Machine(cpus=8, gpus=2), ("vision", "prefill", "decode")
    names = ("tensor-parallel", "power-limit", "vision-overlap")
    told = {one.remedy: one.reason for one in plan([BY_NAME[name] for name in names], gpu).not_tried}
    assert "run.ranks=2" in told["tensor-parallel"]
    assert "nvidia-smi" in told["power-limit"]
    assert "improve --engine" in told["vision-overlap"]
    gpu.machine = Machine(cpus=8, gpus=1)
    assert "one GPU" in plan([BY_NAME["tensor-parallel"]], gpu).not_tried[0].reason


def test_a_process_is_bound_to_cores_or_to_a_node(tmp_path: Path) -> None:
    for cpu in range(8):
        file = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        file = tmp_path / f"sys/devices/system/node/node{node}/cpulist"
        file.parent.mkdir(parents=True)
        file.write_text(f"{cpus}\n")
    options = BY_NAME["binding"].options(situation(root=tmp_path))
    configs = [composed(["model=llama_tiny", *option]).run for option in options]
    assert [(run.affinity, run.memory_nodes, run.threads) for run in configs] == [
        ("0,1,2,3", None, 4),
        ("0-1,4-5", "0", 4),
        ("2-3,6-7", "1", 4),
    ]


def test_attention_kernels_are_offered_where_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "missing_compiler", lambda device: None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    gpu = situation("model=llama_tiny")
    gpu.config = dataclasses.replace(gpu.config, resolved_device="cuda:0")
    installed: set[str] = set()
    monkeypatch.setattr(Machine, "version", lambda self, name: "1" if name in installed else None)

    def names() -> list[str]:
        return [option[0].partition("=")[2] for option in BY_NAME["attention"].options(gpu)]

    assert names() == ["flex_attention", "eager"]
    (tmp_path / "models--kernels-community--flash-attn3" / "snapshots").mkdir(parents=True)
    assert names() == ["flex_attention", "eager"]  # downloaded, but nothing can load it
    installed |= {"kernels", "flash-attn-4"}
    assert names() == ["flash_attention_4", "flex_attention", "eager", "kernels-community/flash-attn3"]
    assert BY_NAME["sdpa-backend"].options(gpu)[1] == ["model.sdpa_backend=cudnn"]
    assert [option[0] for option in BY_NAME["sdpa-backend"].options(situation("model=llama_tiny"))] == [
        "model.sdpa_backend=flash",
        "model.sdpa_backend=math",
    ]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["infer.prompt_lookup_tokens=4", "infer.batch_size=2"], "infer.prompt_lookup_tokens"),
        (["infer.prompt_lookup_tokens=4", "model.cache=static"], "infer.prompt_lookup_tokens"),
        (["infer.prompt_lookup_tokens=4", "infer.draft_tokens=4"], "infer.prompt_lookup_tokens"),
        (["infer.draft_tokens=4"], "model.draft_path"),
        (["infer.prompt_lookup_tokens=-1"], "infer.prompt_lookup_tokens"),
    ],
)
def test_guesses_that_cannot_work_are_refused(overrides: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        composed(["model=llama_tiny", *overrides])
    assert refused.value.data["key"] == key and refused.value.hint
