"""Kernel targets on real traces of an H100, with the tables of the extra ``silicon``: are the named kernels truly slow?"""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.hardware.silicon.installation import SWITCH
from llm_perf_opt.summary import Kernel, Summary
from tests.integration.test_diagnosis_real import ingest
from tests.needs import need


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    need("silicon")
    monkeypatch.setenv(SWITCH, "on")  # tests run without the tables otherwise


def named(summary: Summary, part: str) -> Kernel:
    (found,) = [kernel for kernel in summary.kernels if part in kernel.name and kernel.target is not None]
    return found


def test_the_product_with_narrow_loads_is_the_slow_one(shared_data: Path, tmp_path: Path) -> None:
    """A vocabulary of 30,522 rows is no multiple of 8: cuBLAS takes a kernel that loads two elements at a time."""
    found = ingest(
        tmp_path / "run",
        "--trace",
        shared_data / "h100-torch-traces" / "gaunernst_bert-small-uncased__1016001.json.gz",
    )
    narrow = named(found, "_tn_align2").target
    assert narrow is not None and narrow.shapes == ["141 × 30522 × 512 bfloat16"]
    assert 2.0 < narrow.ratio < 3.5 and narrow.measured_s / narrow.median_s > 2.0
    others = [k.target.ratio for k in found.kernels if k.target is not None and "_align2" not in k.name]
    assert len(others) == 4 and max(others) < narrow.ratio
    claims = {finding.id: finding for finding in found.findings}
    assert narrow.at_stake_s is not None
    # 0.3 ms of kernels are below the evidence floor: the targets stand in the table, and no gain is promised.
    assert not {"misaligned-gemm", "far-from-measured"} & set(claims)


def test_products_at_what_the_silicon_gives_are_not_called_slow(shared_data: Path, tmp_path: Path) -> None:
    found = ingest(
        tmp_path / "run",
        "--trace",
        shared_data / "h100-torch-traces" / "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    )
    product, attention = named(found, "xmma_gemm").target, named(found, "flash_fwd").target
    assert product is not None and attention is not None
    assert 1.0 < product.ratio < 1.3 and 0.8 < attention.ratio < 1.2
    assert "far-from-measured" not in {finding.id for finding in found.findings}
    use = found.utilisation["all"]
    assert use.mfu_ratio is not None and use.mfu_reached_ratio is not None
    assert use.mfu_ratio < use.mfu_reached_ratio < 1.1 * use.mfu_ratio
