"""The installed extra: CI has it, and a machine without says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llm_perf_opt.analysis.static.split import link_bytes
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.hardware.silicon import AllReduce, Attention, Gemm, LatentBlock, MoeLayer, Operator, Silicon
from llm_perf_opt.hardware.silicon.lookup import MISLABELLED
from tests.unit.hardware.silicon.tables import H100

LATENT = LatentBlock("generation", 8, 1024, 16, 7168, 1536, 512, 64, 128, 128)


def test_every_system_is_read_without_a_problem(silicon: Silicon) -> None:
    names = {system.key for system in silicon.systems}
    assert {"a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "l40s", "b60"} <= names
    assert all(system.power_w for system in silicon.systems)
    assert [one for one in silicon.problems if one.split(" ")[0] not in MISLABELLED] == []


@pytest.mark.parametrize(
    "operator",
    [
        Gemm(1, 4096, 4096),
        Gemm(100, 6000, 5000, "float8"),
        Attention("context", 1, 512, 32, 8, 128),
        Attention("generation", 7, 1000, 28, 4, 128),
        Attention("encoder", 1, 577, 16, 16, 64),
        MoeLayer(5, 2048, 768, 8, 128),
        AllReduce(100_000, 8),
        LATENT,
    ],
    ids=lambda operator: type(operator).__name__,
)
def test_every_kind_of_operator_rests_on_tables(silicon: Silicon, operator: Operator) -> None:
    found = silicon.time(operator, H100)
    assert found is not None and found.rests_on_tables and found.source is not None
    assert 0 < min(one.seconds for one in found.tables) <= found.seconds
    assert 1e-7 < found.seconds < 1


def test_a_product_takes_at_least_what_the_device_allows(silicon: Silicon) -> None:
    product = Gemm(4096, 8192, 8192)
    found = silicon.time(product, H100)
    assert found is not None and found.how == "measured"
    assert min(one.seconds for one in found.tables) > product.flops / 989.4e12


def test_reading_the_tables_needs_nothing_of_the_package(silicon: Silicon) -> None:
    code = (
        "import os, sys; os.environ.pop('LLM_PERF_OPT_SILICON', None);"
        "from llm_perf_opt.hardware.silicon import Gemm, open_silicon;"
        f"assert open_silicon().time(Gemm(1, 4096, 4096), {H100!r}) is not None;"
        "print([m for m in ('aiconfigurator_core', 'pandas', 'pyarrow', 'scipy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_no_all_reduce_was_quicker_than_the_links_allow(silicon: Silicon, ranks: int) -> None:
    """What floors count of it (the payload once, over all links in one direction) against everything that was measured."""
    known = [d for d in load_catalogue().devices if d.link_bytes_per_s is not None and silicon.system(d.name)]
    assert len(known) >= 9
    shares = [
        link_bytes("all_reduce", 2.0 * elements, ranks) / (device.link_bytes_per_s or 1.0) / timing.seconds
        for device in known
        for elements in (2**power for power in range(10, 28))
        if (timing := silicon.time(AllReduce(elements, ranks), device.name)) is not None
        and timing.rests_on_tables
    ]
    assert shares and 0.3 < max(shares) < 1.0


def test_tables_with_a_wrong_label_exist_and_are_not_used(silicon: Silicon) -> None:
    (wrong,) = MISLABELLED
    found = silicon.time(Attention("generation", 8, 4096, 32, 8, 128), "NVIDIA A100-SXM4-80GB")
    assert found is not None and found.tables and all(one.source.table != wrong for one in found.tables)
    assert any(wrong in problem and MISLABELLED[wrong] in problem for problem in silicon.problems)
