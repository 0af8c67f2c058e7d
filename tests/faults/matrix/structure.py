"""Files whose structure is the attack (depth, aliases, counts, lengths), for every format that is read: exit 3, or 0 with a note."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.faults.matrix.case import Arguments, Case

_HEADER = {
    "format": "llm-perf-opt.serve.requests",
    "version": 1,
    "loads": [{"kind": "closed", "concurrency": 1}],
}
_REQUEST = {
    "id": "r", "load": 0, "scheduled_s": 1.7e9, "sent_s": 1.7e9, "first_token_s": 1.7e9 + 0.1, "end_s": 1.7e9 + 1, "status": "ok",
    "prompt_tokens": 5, "output_tokens": 5, "token_s": [1.7e9 + 0.1, 1.7e9 + 1],
}  # fmt: skip
_STEPS = {"format": "llm-perf-opt.serve.steps", "version": 1}
_STEP = {
    "end_s": 1.7e9 + 0.5,
    "duration_s": 0.1,
    "prefill": {"r": 5},
    "decode": ["r"],
    "running": 1,
    "waiting": 0,
}
_SAMPLE = {"time_s": 1.7e9, "metrics": {"vllm:num_requests_running": 1}}


def _lines(*objects: object) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in objects).encode()


_GOOD = {
    "serving": _lines(_HEADER, _REQUEST),
    "serving-steps": _lines(_STEPS, _STEP),
    "serving-metrics": _lines(_SAMPLE),
}
_MEMBER = {"serving": _REQUEST, "serving-steps": _STEP, "serving-metrics": _SAMPLE}


def _documents(option: str) -> dict[str, tuple[bytes, tuple[int, ...]]]:
    """Name → content and the exit codes that may be."""
    good, member = _GOOD[option], json.dumps(_MEMBER[option])[1:].encode()
    either = (0, 3)
    return {
        "brackets": (b"[" * 200_000, (3,)),
        "braces": (b'{"a":' * 100_000, (3,)),
        "brackets in a later line": (good + b'{"id":' + b"[" * 100_000 + b"\n", either),
        "one key again and again": (good + b'{"id":"a",' * 1 + b'"id":"b",' * 50_000 + member, either),
        "a line of 5 MB": (good + b'{"id":"' + b"x" * 5_000_000 + b'"}\n', either),
        "200,000 empty lines": (b"\n" * 200_000, (3,)),
        "50,000 keys": (b"{" + b",".join(b'"k%d":1' % number for number in range(50_000)) + b"}", (3,)),
        "a number of 10,000 digits": (good + b'{"load":1' + b"0" * 10_000 + b"," + member, either),
        "not a number": (
            good + b'{"id":"a","load":0,"scheduled_s":NaN,"end_s":Infinity,"time_s":NaN}\n',
            either,
        ),
        "a lone surrogate": (good + b'{"id":"\\ud800",' + member, either),
        "two bytes per letter": (good.decode().encode("utf-16"), either),
        "half a gzip": (gzip.compress(good * 50)[:60], (3,)),
        "a gzip of brackets": (gzip.compress(b"[" * 5_000_000), (3,)),
        "a gzip in a gzip": (gzip.compress(gzip.compress(good)), (3,)),
        "a null byte in the middle": (good + b"\0\n" + good, either),
    }


def _serving(option: str, content: bytes) -> Arguments:
    def build(folder: Path) -> list[str]:
        path = folder / ("records.jsonl.gz" if content[:2] == b"\x1f\x8b" else "records.jsonl")
        path.write_bytes(content)
        arguments = ["ingest", f"--{option}={path}", f"--out={folder / 'run'}"]
        if option != "serving":
            (folder / "requests.jsonl").write_bytes(_GOOD["serving"])
            arguments.append(f"--serving={folder / 'requests.jsonl'}")
        return arguments

    return build


_RECORDS: dict[str, object] = {
    "vllm bench with texts for times": {
        "backend": "vllm", "num_prompts": 3, "duration": 1, "completed": 3, "ttfts": ["a", None, []], "itls": [[1, "x"], 3, {}],
        "input_lens": [1], "output_lens": [-1, 2, 10**30], "request_throughput": "x",
    },
    "vllm bench with lists of different lengths": {
        "backend": "vllm", "num_prompts": 3, "duration": 1, "completed": 3, "ttfts": [1] * 1000, "itls": [[]], "input_lens": [],
        "output_lens": [1] * 3, "request_throughput": 3, "mean_ttft_ms": 1e308, "p99_ttft_ms": -3,
    },
    "guidellm without requests": {"metadata": {"version": 2}, "benchmarks": [[]] * 3},
    "guidellm with texts": {"metadata": {"version": 2}, "benchmarks": [{"requests": {"successful": [{"request_latency": "x"}]}, "metrics": 3}]},
    "spans of nothing": {"resourceSpans": [{"scopeSpans": 3}, None, {"scopeSpans": [{"spans": [None, 3, {"attributes": {}}]}]}]},
    "inference-perf with texts": {"load_summary": [], "successes": {"latency": 3}, "failures": "x"},
    "aiperf with texts": {"request_throughput": {"avg": "x"}, "time_to_first_token": {"avg": [], "p99": {}}, "input_config": 3},
    "mooncake with lengths of 10^30": {"timestamp": 1e308, "input_length": 10**30, "output_length": -1, "hash_ids": "abc"},
    "chunk times backwards": {"t0": 1, "tok": ["a", None, 3, 2, 1], "t1": -5, "last": {"usage": 3, "metrics": []}},
    "forward passes with texts": {
        "version": 1, "worker_id": "w", "dp_rank": 0, "counter_id": 1, "wall_time": "x", "scheduled_requests": 3, "queued_requests": [],
    },
}  # fmt: skip


def _metrics_text(text: bytes) -> Arguments:
    def build(folder: Path) -> list[str]:
        (folder / "metrics.txt").write_bytes(text)
        (folder / "requests.jsonl").write_bytes(_GOOD["serving"])
        return [
            "ingest", f"--serving={folder / 'requests.jsonl'}", f"--serving-metrics={folder / 'metrics.txt'}", f"--out={folder / 'run'}",
        ]  # fmt: skip

    return build


_TEXTS = {
    "a million quotes in a label": b'# TYPE a gauge\nvllm:num_requests_running{a="'
    + b'\\"' * 500_000
    + b'"} 1\n',
    "braces": b"# TYPE a gauge\nvllm:num_requests_running{" + b"{" * 300_000 + b"} 1\n",
    "infinite values": b"# TYPE a gauge\nvllm:num_requests_running 1e999\nvllm:kv_cache_usage_perc NaN\n",
    "sums that overflow": b'# TYPE a gauge\nvllm:num_requests_running{e="0"} 1e308\nvllm:num_requests_running{e="1"} 1e308\n',
    "times of another age": b"# TYPE a gauge\nvllm:num_requests_running 1 99999999999999999999999\n",
    "50,000 names": b"# TYPE a gauge\n" + b"".join(b"n%d 1\n" % number for number in range(50_000)),
    "a line without end": b"# TYPE a gauge\n" + b"n" * 3_000_000,
}


def _parquet(content: bytes) -> Arguments:
    """An index that somebody left beside the runs."""

    def build(folder: Path) -> list[str]:
        from tests.unit.history.runs_made import make_run

        make_run(folder / "runs", "one")
        for name in ("runs.parquet", "metrics.parquet", "findings.parquet"):
            (folder / "runs" / name).write_bytes(content)
        return ["index", str(folder / "runs")]

    return build


_INDEXES = {
    "empty": b"",
    "zeros": b"\0" * 4096,
    "only its mark": b"PAR1PAR1",
    "a footer larger than the file": b"PAR1" + b"\0" * 100 + struct.pack("<I", 0x7FFFFFFF) + b"PAR1",
    "a footer of noise": b"PAR1" + bytes(range(256)) * 4 + struct.pack("<I", 512) + b"PAR1",
    "text": b"run,metric\n1,2\n" * 50,
}


def _tensors(header: bytes, *, length: int | None = None) -> Arguments:
    def build(folder: Path) -> list[str]:
        made = folder / "checkpoint"
        made.mkdir()
        config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "intermediate_size": 16,
                  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32}  # fmt: skip
        (made / "config.json").write_text(json.dumps(config))
        size = struct.pack("<Q", len(header) if length is None else length)
        (made / "model.safetensors").write_bytes(size + header + b"\0" * 64)
        return [
            "run", f"model={made}", "hardware.probe=false", "pipeline.static_analysis.enable=false", "dataset.synthetic_count=1",
            "dataset.synthetic_tokens=8", "infer.max_new_tokens=3", "run.exclusive=false", f"artifacts.runs_dir={folder / 'run'}",
        ]  # fmt: skip

    return build


_TENSORS: dict[str, Arguments] = {
    "a header of 2^63 bytes": _tensors(b"{}", length=2**63),
    "a header longer than the file": _tensors(b"{}", length=1_000_000),
    "a header of brackets": _tensors(b"[" * 100_000),
    "a shape of 2^62": _tensors(
        b'{"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,64]}}'
    ),
    "offsets backwards": _tensors(b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[64,0]}}'),
}


def _cases() -> Iterator[Case]:
    for option in _GOOD:
        for name, (content, codes) in _documents(option).items():
            yield Case("structure", f"--{option}: {name}", _serving(option, content), codes)
    for name, record in _RECORDS.items():
        yield Case("structure", f"--serving: {name}", _serving("serving", _lines(record)), (0, 3))
        yield Case("structure", f"--serving-steps: {name}", _serving("serving-steps", _lines(record)), (0, 3))
    loads = {**_HEADER, "loads": [{"kind": "open", "rate_per_s": rate} for rate in range(1, 20_001)]}
    yield Case(
        "structure",
        "--serving: 20,000 load points",
        _serving("serving", _lines(loads, _REQUEST)),
        3,
        ("load points",),
    )
    for name, text in _TEXTS.items():
        yield Case("structure", f"/metrics: {name}", _metrics_text(text), (0, 3))
    for name, content in _INDEXES.items():
        yield Case("structure", f"index: {name}", _parquet(content), 0)
    for name, arguments in _TENSORS.items():
        yield Case("structure", f"safetensors: {name}", arguments, (1, 3), slow=True)


CASES = tuple(_cases())
