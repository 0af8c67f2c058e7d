"""Operators by what they do."""

from __future__ import annotations

import pytest

from llm_perf_opt.analysis.cpu import class_of, class_rules, joins_tensors


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "matrix"),
        ("aten::addmm", "matrix"),
        ("aten::baddbmm", "matrix"),
        ("aten::linear", "matrix"),
        ("linear", "matrix"),
        ("aten::_grouped_mm", "matrix"),
        ("aten::mkldnn_convolution", "matrix"),
        ("aten::conv2d", "matrix"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "matrix"),
        ("mkl::_mkl_linear", "matrix"),
        ("aten::copy_", "movement"),
        ("aten::_to_copy", "movement"),
        ("aten::cat", "movement"),
        ("aten::contiguous", "movement"),
        ("aten::index_select", "movement"),
        ("aten::embedding", "movement"),
        ("aten::constant_pad_nd", "movement"),
        ("aten::repeat_interleave", "movement"),
        ("aten::zero_", "movement"),
        ("aten::view", "bookkeeping"),
        ("aten::as_strided", "bookkeeping"),
        ("aten::transpose", "bookkeeping"),
        ("aten::t", "bookkeeping"),
        ("aten::empty_strided", "bookkeeping"),
        ("aten::item", "bookkeeping"),
        ("aten::mul", "element-wise"),
        ("aten::add_", "element-wise"),
        ("aten::__and__", "element-wise"),
        ("aten::bitwise_not", "element-wise"),
        ("aten::silu", "element-wise"),
        ("aten::sum", "element-wise"),
        ("aten::native_layer_norm", "normalisation"),
        ("aten::_softmax", "normalisation"),
        ("aten::_fused_rms_norm", "normalisation"),
        ("aten::argmax", "sampling"),
        ("aten::topk", "sampling"),
        ("aten::arange", "other"),
        ("aten::_upsample_bicubic2d_aa", "other"),
        ("VmappedVmappedModIndex", "movement"),
        ("Torch-Compiled Region: 0/0", "compiled"),
        ("## Call CompiledFxGraph fzbkiose ##", "compiled"),
        ("TorchDynamo Cache Lookup", "bookkeeping"),
        ("mylib::fused_thing", "unknown"),
        ("aten::nothing_known", "unknown"),
    ],
)
def test_what_operators_do(name: str, kind: str) -> None:
    assert class_of(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::batch_norm", "normalisation"),  # no batched product
        ("aten::convert", "unknown"),  # no convolution
        ("aten::comm", "unknown"),  # no product
        ("aten::view_as", "bookkeeping"),
        ("aten::index_put_", "movement"),
    ],
)
def test_names_that_only_look_alike(name: str, kind: str) -> None:
    assert class_of(name) == kind


def test_every_rule_names_a_class_that_is_known() -> None:
    known = {
        "compiled",
        "matrix",
        "bookkeeping",
        "movement",
        "normalisation",
        "sampling",
        "element-wise",
        "other",
    }
    assert {kind for kind, _ in class_rules()} == known


def test_only_joins_make_a_cache_grow() -> None:
    assert joins_tensors("aten::cat") and joins_tensors("cat")
    assert not joins_tensors("aten::copy_") and not joins_tensors("aten::index_copy_")
