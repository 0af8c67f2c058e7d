"""Chains of kernels between two heavy ones: attention in pieces, and work that one kernel could do."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.kernels.chains import Chains, chain_metrics, find_chains
from llm_perf_opt.captures.timeline import Timeline
from tests.unit.timelines import LAUNCH, make_timeline

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, c10::BFloat16, 10, false, false>(int)"
COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"
FLASH = (
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >(Flash_fwd_params)"
)
MS = 1_000_000


def run(*kernels: tuple[str, int], streams: list[int] | None = None) -> Timeline:
    """Kernels one after the other, by name and length."""
    ops, at = [], 0
    for name, length in kernels:
        ops.append((at, at + length, name, 0))
        at += length + 1
    return make_timeline(ops, [(-10, -5, LAUNCH)], streams=streams)


def test_what_runs_between_the_products_of_attention_is_attention_in_pieces() -> None:
    found = find_chains(run((GEMM, 50), (ADD, 10), (COPY, 5), (SOFTMAX, 20), (COPY, 5), (GEMM, 50)))
    assert (found.attention_ns, found.attention_launches, found.attention_softmax) == (40, 4, 1)
    assert found.attention_copy_ns == 10
    assert found.chains == found.chain_saving_ns == 0, "no time is claimed twice"


@pytest.mark.parametrize(
    "kernels",
    [
        [(GEMM, 50), (SOFTMAX, 20), (FLASH, 50)],  # no product behind it
        [(SOFTMAX, 20), (GEMM, 50)],  # none before it
        [
            (GEMM, 50),
            (SOFTMAX, 20),
            (ADD, 5),
            (SOFTMAX, 20),
            (GEMM, 50),
        ],  # two: not the scores of one attention
        [(GEMM, 50), *[(ADD, 5)] * 12, (SOFTMAX, 20), (GEMM, 50)],  # too far from the products
    ],
)
def test_a_softmax_elsewhere_is_not_attention(kernels: list[tuple[str, int]]) -> None:
    assert find_chains(run(*kernels)).attention_ns == 0


def test_attention_over_long_contexts_has_long_kernels() -> None:
    assert find_chains(run((GEMM, MS), (ADD, 2 * MS), (SOFTMAX, 3 * MS), (GEMM, MS))).attention_ns == 5 * MS


def test_fusing_a_chain_leaves_its_longest_kernel() -> None:
    found = find_chains(
        run((GEMM, 50), (ADD, 10), (COPY, 30), (ADD, 10), (GEMM, 50), (ADD, 7), (ADD, 7), (GEMM, 50))
    )
    assert (found.chains, found.chain_launches, found.chain_ns) == (1, 3, 50), (
        "two kernels are what fused models have"
    )
    assert (found.chain_saving_ns, found.chain_copy_ns) == (20, 30)


def test_long_kernels_are_no_small_pieces() -> None:
    assert (
        find_chains(run((GEMM, 50), (ADD, 200 * MS), (ADD, 200 * MS), (ADD, 200 * MS), (GEMM, 50)))
        == Chains()
    )


def test_streams_do_not_make_chains_together() -> None:
    kernels = [(GEMM, 50), (ADD, 10), (ADD, 10), (ADD, 10), (GEMM, 50)]
    assert find_chains(run(*kernels, streams=[7, 7, 8, 7, 7])).chains == 0
    assert find_chains(run(*kernels, streams=[7] * 5)).chains == 1


def test_metrics_carry_their_unit_and_nothing_is_none() -> None:
    named = chain_metrics(find_chains(run((GEMM, 50), (SOFTMAX, 20), (GEMM, 50))))
    assert named["attention_pieces_s"] == 20e-9
    assert all(value is not None for value in named.values())
    assert find_chains(make_timeline()) == Chains()
