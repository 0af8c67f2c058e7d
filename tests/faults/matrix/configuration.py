"""Keys, values, combinations and switches that cannot be meant: exit 2, the key and the fix named, nothing written."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.config.checks import RANGES
from tests.faults.matrix.case import Case, fixed, run_with

_MISTYPED = {
    "rn.repeats=3": "run.repeats",
    "run.repeat=3": "run.repeats",
    "repeets=3": "repeats",
    "run.devise=cpu": "run.device",
    "infer.batchsize=2": "infer.batch_size",
    "infer.max_tokens=2": "infer.max_new_tokens",
    "model.pth=/x": "model.path",
    "model.dtypes=float32": "model.dtype",
    "dataset.rot=/x": "dataset.root",
    "dataset.sampling.sed=1": "dataset.sampling.seed",
    "hardware.prob=false": "hardware.probe",
    "pipeline.nsis.enable=true": "pipeline.nsys.enable",
    "pipeline.nsys.enabel=true": "pipeline.nsys.enable",
    "pipeline.ncu.ncu_cli.sett=full": "pipeline.ncu.ncu_cli.set",
    "pipeline.torch_profiler.record_shape=true": "pipeline.torch_profiler.record_shapes",
    "pipeline.workload.comand=[ls]": "pipeline.workload.command",
    "artifacts.run_dir=/x": "artifacts.runs_dir",
}
_WRONG_TYPES = (
    "run.repeats=abc",
    "run.repeats=1.5",
    "run.repeats=[1]",
    "run.threads=many",
    "run.nvtx_modules=perhaps",
    "infer.batch_size=two",
    "infer.batch_size={a: 1}",
    "infer.chat_template=sometimes",
    "infer.mode=huge",
    "run.mode=quick",
    "model.dtype=float3",
    "model.weights=fake",
    "model.cache=big",
    "model.compile=maybe",
    "model.seed=x",
    "dataset.prompts=5",
    "hardware.probe=7.5",
    "pipeline.nsys.timeout_s=soon",
    "pipeline.nsys.max_bytes=lots",
    "pipeline.torch_profiler.activities=[gpu]",
    "pipeline.torch_profiler.rank_by=luck",
    "pipeline.static_analysis.causal=half",
    "pipeline.workload.timeout_s=never",
)
_COMBINATIONS = {
    "model.weights=real": "needs a checkpoint",
    "model.trust_remote_code=true": "has no code to trust",
    "run.device=cuda:9": "is not available",
    "run.device=gpu": "is not a device",
    "pipeline.workload.command=[]": "is empty",
    "pipeline.torch_profiler.activities=[]": "leaves nothing to record",
    "pipeline.torch_profiler.active_passes=0": "out of range",
    "pipeline.static_analysis.grid=[1]": "is not [columns, rows]",
    "pipeline.static_analysis.context_tokens=0": "below 1",
    "model=nowhere": "is not a preset",
    "model=null": "names no preset",
    "pipeline=x": "replaces a whole section",
    "hardware.device=RTX 9999": "RTX 9999",
    "hardware.catalogue=/nowhere/devices.yaml": "devices.yaml",
    "model.adapter=nothing_like_it": "nothing_like_it",
    "model.adapter=no.such.module:Thing": "no.such.module",
    "dataset.adapter=nothing_like_it": "nothing_like_it",
}
_SWITCHES = {
    "--pln": "--plan",
    "--config-dir=/nowhere/at/all": "is not a directory",
    "--jsn": "--json",
    "justaword": "is not an override",
    "=3": "names no key",
}


def _cases() -> Iterator[Case]:
    for override, meant in _MISTYPED.items():
        yield Case("configuration", override, run_with(override), 2, (meant,), writes_nothing=True)
    for override in _WRONG_TYPES:
        key = override.partition("=")[0]
        yield Case("configuration", override, run_with(override), 2, (key,), writes_nothing=True)
    for rule in RANGES:
        key = rule.key.replace("workload_command", "pipeline.workload")
        for bad in [value for value in (-1, -99999999999, 10**30) if not rule.allowed(value)]:
            yield Case(
                "configuration",
                f"{key}={bad}",
                run_with(f"{key}={bad}"),
                2,
                (key, "fix:"),
                writes_nothing=True,
            )
    for override, phrase in _COMBINATIONS.items():
        yield Case("configuration", override, run_with(override), 2, (phrase,), writes_nothing=True)
    for switch, phrase in _SWITCHES.items():
        yield Case(
            "configuration",
            switch,
            fixed("run", switch, "artifacts.runs_dir={run}"),
            2,
            (phrase,),
            writes_nothing=True,
        )
    for verb, meant in (("rnu", "run"), ("dcotor", "doctor"), ("reprot", "report"), ("compair", "compare")):
        yield Case("configuration", f"verb {verb}", fixed(verb), 2, (meant,))


CASES = tuple(_cases())
