"""Step names of engines: phase and size, in every spelling their sources write."""

from __future__ import annotations

from typing import Any

import pytest

from llm_perf_opt.analysis.timeline.range_names import StepSize, meaning_of

CASES: list[tuple[str, str | None, dict[str, Any]]] = [
    # vLLM
    ("execute_new_2_cached_0", "prefill", {"all_requests": 2, "all_tokens": None}),
    ("execute_new_0_cached_7", "decode", {"decode_requests": 7}),
    ("execute_new_2_cached_7", "mixed", {"all_requests": 9}),
    ("execute_new_0_cached_0", None, {}),
    ("execute_context_2(14721)_generation_0(0)", "prefill", {"all_tokens": 14721, "all_requests": 2}),
    ("execute_context_0(0)_generation_32(128)", "decode", {"all_tokens": 128, "all_requests": 32}),
    ("execute_context_2(6144)_generation_3(3)", "mixed", {"all_tokens": 6147, "all_requests": 5}),
    ("execute_context_1(888_788544)_generation_0(0)", "prefill", {"all_tokens": 888, "all_pairs": None}),
    ("execute_context_1_generation_0", "prefill", {"all_requests": 1, "all_tokens": None}),
    (
        "execute_6147_context_2(sq6144sk7144sqsq20971520sqsk23019520)_generation_3(sq3sk6144sqsq3sqsk6144)",
        "mixed",
        {"all_tokens": 6147, "prefill_tokens": 6144, "decode_requests": 3, "all_pairs": 23025664},
    ),
    (
        "execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk131072sqsq64sqsk131072)",
        "decode",
        {"all_tokens": 64, "all_pairs": 131072},
    ),
    ("vllm:execute_context_1(5)_generation_0(0)", "prefill", {"all_tokens": 5}),
    ("execute_model", None, {}),
    ("execute_dummy_batch", None, {}),
    ("gpu_model_runner: forward", None, {}),
    ("capture_128_decode", None, {}),
    # SGLang
    ("step[EXTEND bs=15 toks=15360]", "prefill", {"all_requests": 15, "all_tokens": 15360}),
    ("step[DECODE bs=32]", "decode", {"all_requests": 32, "all_tokens": 32}),
    ("step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]", "decode", {"all_tokens": 128, "all_pairs": 262144}),
    ("step[MIXED bs=2]", "mixed", {"all_requests": 2, "all_tokens": None}),
    (
        "step[MIXED bs=5 c=2 g=3 c_sq=6144 c_sk=7144 c_sqsq=20971520 c_sqsk=23019520 g_sq=3 g_sk=6144 g_sqsq=3 g_sqsk=6144]",
        "mixed",
        {"all_requests": 5, "all_tokens": 6147, "all_pairs": 23025664},
    ),
    ("step[MIXED bs=1 c=1 g=0 c_sq=3 c_sk=3 c_sqsq=9 c_sqsk=9 g_sq=0 g_sk=0 g_sqsq=0 g_sqsk=0]", "prefill", {"all_tokens": 3}),
    ("step[SPLIT_PREFILL bs=1]", "prefill", {"all_requests": 1}),
    ("step[TARGET_VERIFY bs=4]", "verify", {"all_requests": 4, "all_tokens": None}),
    ("step[VERIFY bs=4]", "verify", {"all_requests": 4, "all_tokens": None}),
    ("step[VERIFY bs=4 toks=16]", "verify", {"all_requests": 4, "all_tokens": 16}),
    ("step[DRAFT_EXTEND_V2 bs=4]", "draft", {"all_requests": 4}),
    ("step[DRAFT bs=2]", "draft", {"all_requests": 2}),
    ("step[DRAFT bs=2 toks=9]", "draft", {"all_requests": 2, "all_tokens": 9}),
    ("step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]", "draft", {"all_requests": 4}),
    ("step[IDLE bs=0]", None, {}),
    ("step[PREBUILT bs=3]", None, {}),
    # TensorRT-LLM
    ("[Executor] _forward_step 12: 1 ctx reqs, 128 ctx tokens, 5 gen reqs", "mixed", {"prefill_tokens": 128, "all_requests": 6, "all_tokens": None}),
    ("[Executor] _forward_step 7: 2 ctx reqs, 0 gen reqs", "prefill", {"all_requests": 2}),
    ("[Executor] _forward_step: 0 ctx reqs, 64 gen reqs", "decode", {"all_requests": 64}),
    ("_forward_step: 0 ctx reqs, 0 gen reqs", None, {}),
    ("executeStep: 0 ctx reqs, 3 gen reqs", "decode", {"all_requests": 3}),
    # ATOM
    ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", "prefill", {"all_requests": 2, "all_tokens": 14721}),
    ("decode[bs=117/128 tok=117 d=117]", "decode", {"all_requests": 117, "all_tokens": 117}),
    ("decode[bs=128 tok=384 p=2 d=126 sqsq=1 sqsk=2 sk=3 tbo=1]", "mixed", {"all_requests": 128, "all_tokens": 384}),
    ("eager_decode[bs=3 tok=3 ", "decode", {"all_requests": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "phase", "size"), CASES, ids=[case[0][:60] for case in CASES])
def test_a_step_names_its_phase_and_its_size(name: str, phase: str | None, size: dict[str, Any]) -> None:
    meaning = meaning_of(name)
    assert meaning.phase == phase
    assert (meaning.step is None) == (not size)
    assert {key: getattr(meaning.step, key) for key in size} == size


def test_a_step_without_counts_is_a_phase_only() -> None:
    meaning = meaning_of("forward_extend")
    assert (meaning.phase, meaning.step) == ("prefill", None)
    assert meaning_of("mixed_step 4").phase == "mixed"


def test_a_number_no_step_can_hold_is_not_a_count() -> None:
    meaning = meaning_of(f"step[DECODE bs={'9' * 30}]")
    assert (meaning.phase, meaning.step) == ("decode", None)


def test_tokens_of_one_kind_are_not_those_of_the_step() -> None:
    assert StepSize(prefill_requests=1, prefill_tokens=8, decode_requests=2).all_tokens is None
    assert StepSize(prefill_requests=1, prefill_tokens=8, decode_requests=0).all_tokens == 8


RECORDED = {
    "sglang 0.5.19": {
        "step[EXTEND bs=2 toks=64]": "prefill",
        "step[TARGET_VERIFY bs=2]": "verify",
        "step[DECODE bs=8]": "decode",
    },
    "sglang 0.5.23": {
        "step[VERIFY bs=2]": "verify",
        "step[DRAFT bs=2]": "draft",
        "step[MIXED bs=5]": "mixed",
        "step[IDLE bs=0]": None,
    },
    "vllm 0.33.0": {
        "execute_context_2(64)_generation_0(0)": "prefill",
        "execute_context_1(64)_generation_3(3)": "mixed",
    },
}
"""Release → labels as its source writes them (scripts/check-engines.py looks for that source in newer ones)."""


@pytest.mark.parametrize("release", RECORDED)
def test_labels_of_named_releases_are_read(release: str) -> None:
    assert {name: meaning_of(name).phase for name in RECORDED[release]} == RECORDED[release]
