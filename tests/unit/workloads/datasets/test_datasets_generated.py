"""Generated pages: deterministic, exact, cached, safe to make twice at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from llm_perf_opt.config.schema import DatasetConfig, GeneratedConfig
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.files import sha256_of
from llm_perf_opt.workloads.datasets.generated_pages import (
    LAYOUTS,
    ensure_pages,
    make_page,
    page_size,
    user_cache_dir,
)
from llm_perf_opt.workloads.datasets.omnidocbench import OmniDocBench

SIDE = 400


def hashes(root: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in sorted((root / "images").iterdir())}


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first = ensure_pages(GeneratedConfig(pages=4, max_side=SIDE, cache_dir=str(tmp_path / "a")))
    second = ensure_pages(GeneratedConfig(pages=4, max_side=SIDE, cache_dir=str(tmp_path / "b")))
    other = ensure_pages(GeneratedConfig(pages=4, max_side=SIDE, seed=1, cache_dir=str(tmp_path / "a")))
    assert hashes(first) == hashes(second)
    assert (first / "OmniDocBench.json").read_bytes() == (second / "OmniDocBench.json").read_bytes()
    assert set(hashes(first).values()).isdisjoint(hashes(other).values())


def test_a_page_does_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    few = ensure_pages(GeneratedConfig(pages=1, max_side=SIDE, cache_dir=str(tmp_path)))
    more = ensure_pages(GeneratedConfig(pages=3, max_side=SIDE, cache_dir=str(tmp_path)))
    assert hashes(few).items() <= hashes(more).items()


def test_sizes_are_mixed_and_bounded() -> None:
    sizes = {layout: page_size(layout, 1754) for layout in LAYOUTS}
    assert sizes["portrait"] == (1240, 1754)
    assert sizes["landscape_table"][0] > sizes["landscape_table"][1]
    assert max(sizes["small"]) <= 640
    assert all(max(size) <= 1754 for size in sizes.values())


def test_the_default_set_has_a_table_with_html(tmp_path: Path) -> None:
    root = ensure_pages(GeneratedConfig(max_side=SIDE, cache_dir=str(tmp_path)))
    pages = json.loads((root / "OmniDocBench.json").read_text())
    tables = [block for page in pages for block in page["layout_dets"] if block["category_type"] == "table"]
    assert tables
    assert tables[0]["html"].startswith("<table><tr><td>")
    assert tables[0]["html"].count("<tr>") == 6


@pytest.mark.parametrize("index", range(len(LAYOUTS)))
def test_every_poly_surrounds_its_ink_and_nothing_is_drawn_elsewhere(index: int) -> None:
    page = make_page(index, seed=3, max_side=700)
    blank = page.image.copy()
    for block in page.annotation["layout_dets"]:
        xs, ys = block["poly"][0::2], block["poly"][1::2]
        assert (min(xs), min(ys)) >= (0, 0)
        assert max(xs) <= page.image.width
        assert max(ys) <= page.image.height
        box = (int(min(xs)) - 1, int(min(ys)) - 1, int(max(xs)) + 2, int(max(ys)) + 2)
        assert page.image.crop(box).convert("L").getextrema()[0] < 160, "a block without ink"
        blank.paste((255, 255, 255), box)
    assert blank.convert("L").getextrema() == (255, 255), "ink outside every block"


def test_blocks_have_an_order_but_page_numbers_do_not() -> None:
    blocks = make_page(0, seed=0, max_side=SIDE).annotation["layout_dets"]
    ordered = [block["order"] for block in blocks if block["category_type"] != "page_number"]
    assert ordered == list(range(len(ordered)))
    assert [block["order"] for block in blocks if block["category_type"] == "page_number"] == [None]


def test_the_cache_is_used_again(tmp_path: Path) -> None:
    config = GeneratedConfig(pages=1, max_side=SIDE, cache_dir=str(tmp_path))
    image = next((ensure_pages(config) / "images").iterdir())
    stamp = image.stat().st_mtime_ns
    ensure_pages(config)
    assert image.stat().st_mtime_ns == stamp
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "scratch left behind"


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    config = GeneratedConfig(pages=2, max_side=SIDE, cache_dir=str(tmp_path))
    root = ensure_pages(config)
    before = hashes(root)
    next((root / "images").iterdir()).write_bytes(b"cut off")
    assert hashes(ensure_pages(config)) == before
    next((root / "images").iterdir()).unlink()
    assert hashes(ensure_pages(config)) == before
    assert [path.name for path in tmp_path.iterdir()] == [root.name]


def test_runs_started_together_share_one_set(tmp_path: Path) -> None:
    program = (
        "from llm_perf_opt.config.schema import GeneratedConfig\n"
        "from llm_perf_opt.workloads.datasets.generated_pages import ensure_pages\n"
        f"print(ensure_pages(GeneratedConfig(pages=2, max_side={SIDE}, cache_dir={str(tmp_path)!r})))\n"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    results = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], results
    roots = {stdout.strip() for stdout, _ in results}
    assert len(roots) == 1
    assert [path.name for path in tmp_path.iterdir()] == [Path(roots.pop()).name]


def test_a_cache_that_cannot_be_written_falls_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocker = tmp_path / "a file, not a folder"
    blocker.write_text("")
    root = ensure_pages(GeneratedConfig(pages=1, max_side=SIDE, cache_dir=str(blocker / "below")))
    assert root.is_dir()
    assert not root.is_relative_to(tmp_path)
    assert str(root.parent) in caplog.text, "where the pages are instead"


def test_cache_directory_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLM_PERF_OPT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_dir() == tmp_path / "llm-perf-opt"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert user_cache_dir() == Path("~/.cache/llm-perf-opt").expanduser()
    monkeypatch.setenv("LLM_PERF_OPT_CACHE", str(tmp_path / "own"))
    assert user_cache_dir() == tmp_path / "own"


@pytest.mark.parametrize(("field", "value"), [("pages", 0), ("max_side", 10)])
def test_impossible_settings_are_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigError) as caught:
        ensure_pages(GeneratedConfig(**{field: value}))
    assert caught.value.data["key"] == f"dataset.generated.{field}"


def test_the_smallest_pages_can_be_drawn_and_read(tmp_path: Path) -> None:
    config = DatasetConfig(generated=GeneratedConfig(pages=4, max_side=64, cache_dir=str(tmp_path)))
    dataset = OmniDocBench(config)
    samples = list(dataset.samples())
    assert len(samples) == 4
    assert dataset.problems() == ()
    for sample in samples:
        assert sample.path is not None
        assert max(Image.open(sample.path).size) <= 64


def test_generated_samples_carry_their_text_without_captions_and_page_numbers(tmp_path: Path) -> None:
    config = DatasetConfig(generated=GeneratedConfig(pages=2, max_side=900, cache_dir=str(tmp_path)))
    dataset = OmniDocBench(config)
    assert dataset.root is not None
    pages = json.loads((dataset.root / "OmniDocBench.json").read_text())
    for sample, page in zip(dataset.samples(), pages, strict=True):
        assert sample.reference is not None
        for block in page["layout_dets"]:
            scored = block["category_type"] not in {"table_caption", "page_number"}
            if block["category_type"] != "page_number":
                assert (block.get("text", block.get("html")) in sample.reference) == scored
        assert sample.reference.startswith(page["layout_dets"][0]["text"])
