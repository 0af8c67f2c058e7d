"""Short names of kernels that no rule knows, and kernels whose folder names another capture."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llm_perf_opt.analysis.kernels.match import match_kernels, name_md5
from llm_perf_opt.analysis.kernels.names import bare_name, short_name


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("void a<b>::k(int)", "k"),
        ("void a<b<c>>::k<d>(int)", "k"),
        ("ns::k<x>(int (*)(float), T) const", "k"),
        ("ns::k(int) const", "k"),
        ("k[abi:cxx11](int)", "k"),
        ("(anonymous namespace)::k(int)", "k"),
    ],
)
def test_bare_names_are_the_function(name: str, bare: str) -> None:
    assert bare_name(name) == bare


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void mine<float, int>(T1)", "mine f32"),
        ("void mine<int, bool, c10::Half>(T1)", "mine f16"),  # indices and flags are not what it computes in
        ("void mine<c10::Half, at::x(at::T &)::[lambda(float) (instance 1)]>(int)", "mine f32"),
        ("void mine<c10::BFloat16, at::x()::[lambda(int) (instance 1)]>(int)", "mine bf16"),
        ("void mine<4>(int)", "mine"),
        ("void mine(float)", "mine"),
    ],
)
def test_short_names_carry_the_element_type(name: str, short: str) -> None:
    assert short_name(name) == short


def test_long_names_are_cut_at_eighty_letters() -> None:
    assert short_name("k" * 80) == "k" * 80
    assert short_name("k" * 81) == "k" * 79 + "…"


def test_an_md5_that_no_kernel_has_leaves_the_name() -> None:
    stray = SimpleNamespace(kernel="f(int)", nsys_name_md5=name_md5("another run's kernel"))
    assert match_kernels([stray], ["f(int)", "g(int)"]) == {"f(int)": "f(int)"}
