"""OmniDocBench on disk: files, annotations, ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from llm_perf_opt.config.schema import DatasetConfig, SamplingConfig
from llm_perf_opt.core.files import sha256_of
from llm_perf_opt.workloads.datasets import omnidocbench
from llm_perf_opt.workloads.datasets.annotations import Annotations, page_text
from llm_perf_opt.workloads.datasets.omnidocbench import OmniDocBench, sample_ids
from llm_perf_opt.workloads.datasets.sampling import inputs_document, write_inputs


def picture(path: Path, size: tuple[int, int] = (40, 60), **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "white").save(path, **options)
    return path


def block(category: str, order: int | None, anno_id: int = 0, **content: Any) -> dict[str, Any]:
    return {"category_type": category, "order": order, "anno_id": anno_id, "ignore": False, **content}


def page(name: str, *blocks: dict[str, Any], relation: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "layout_dets": list(blocks),
        "extra": {"relation": relation or []},
        "page_info": {"image_path": name, "width": 1, "height": 1, "page_attribute": {}},
    }


def config(root: Path, **values: Any) -> DatasetConfig:
    return DatasetConfig(root=str(root), **values)


def test_the_first_pattern_that_matches_is_used_in_byte_order(tmp_path: Path) -> None:
    for name in ("b.png", "a.png", "Z.png", "é.png"):
        picture(tmp_path / "images" / name)
    picture(tmp_path / "images" / "c.jpg")
    assert [sample.id for sample in OmniDocBench(config(tmp_path)).samples()] == [
        "Z.png",
        "a.png",
        "b.png",
        "é.png",
    ]


def test_own_patterns(tmp_path: Path) -> None:
    picture(tmp_path / "scans" / "deep" / "one.tiff")
    found = OmniDocBench(config(tmp_path, fallback_patterns=["*.png", "scans/**/*.tiff"]))
    assert [sample.id for sample in found.samples()] == ["one.tiff"]


def test_samples_carry_hash_size_and_reference(tmp_path: Path) -> None:
    path = picture(tmp_path / "images" / "book.pdf_12.jpg", (30, 50))
    # Width and height are swapped in many annotations; ours come from the image.
    annotation = page(
        "book.pdf_12.jpg", block("text_block", 1, text="second"), block("title", 0, text="first")
    )
    annotation["page_info"].update(width=50, height=30)
    (tmp_path / "OmniDocBench.json").write_text(json.dumps([annotation]))
    (sample,) = OmniDocBench(config(tmp_path)).samples()
    assert sample.id == "book.pdf_12.jpg"
    assert sample.path == path
    assert sample.sha256 == sha256_of(path)
    assert sample.reference == "first\n\nsecond"
    assert (sample.extra["width"], sample.extra["height"]) == (30, 50)


def test_names_with_dots_are_not_confused() -> None:
    known = Annotations(
        [
            page("a.pdf_1.jpg", block("text_block", 0, text="one")),
            page("a.pdf_12.jpg", block("text_block", 0, text="two")),
        ]
    )
    assert known.reference("a.pdf_1.jpg") == "one"
    assert known.reference("a.pdf_12.jpg") == "two"
    assert known.reference("a.pdf_12.png") == "two", "another release stores the same page as PNG"
    assert known.reference("a.pdf") is None
    assert known.reference("a.jpg") is None


def test_an_ambiguous_stem_gives_no_reference() -> None:
    known = Annotations(
        [page("a.jpg", block("text_block", 0, text="one")), page("a.png", block("text_block", 0, text="two"))]
    )
    assert known.reference("a.jpg") == "one"
    assert known.reference("a.tiff") is None


def test_reading_order_and_ignored_categories() -> None:
    text = page_text(
        page(
            "x.png",
            block("header", None, text="HEADER"),
            block("table", 3, html="<table><tr><td>1</td></tr></table>"),
            block("text_block", None, text="unordered"),
            block("equation_isolated", 2, latex="$$a=b$$"),
            block("title", 0, text=" Title "),
            block("text_block", 1, text="kept"),
            {**block("text_block", 1, text="IGNORED"), "ignore": True},
            block("figure_caption", 4, text="CAPTION"),
            block("page_number", None, text="7"),
            block("abandon", 5, text="ABANDON"),
            block("figure", 6),
        )
    )
    assert text == "Title\n\nkept\n\n$$a=b$$\n\n<table><tr><td>1</td></tr></table>\n\nunordered"


def test_a_truncated_block_is_joined_to_its_continuation() -> None:
    relation = [{"source_anno_id": 1, "target_anno_id": 2, "relation_type": "truncated"}]
    blocks = (
        block("text_block", 0, 1, text="it goes"),
        block("text_block", 1, 2, text="on"),
        block("title", 2, 3, text="end"),
    )
    assert page_text(page("x.png", *blocks, relation=relation)) == "it goes on\n\nend"


@pytest.mark.parametrize(
    "hostile",
    [
        {},
        {"layout_dets": None},
        {"layout_dets": [None, 3, {}, {"text": 5}, {"text": "x", "order": "first", "anno_id": [1]}]},
        {
            "layout_dets": [{"text": "x"}],
            "extra": {"relation": [None, {"relation_type": "truncated", "source_anno_id": {}}]},
        },
        {"layout_dets": [], "extra": [1]},
    ],
)
def test_malformed_annotations_never_crash(hostile: dict[str, Any]) -> None:
    assert isinstance(page_text(hostile), str)
    assert Annotations([hostile]).unusable == 1


def test_the_demo_file_name_is_found_too(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "a.png")
    (tmp_path / "OmniDocBench_demo.json").write_text(
        json.dumps([page("images/a.png", block("title", 0, text="t"))])
    )
    assert next(OmniDocBench(config(tmp_path)).samples()).reference == "t"


def test_without_annotations_there_is_no_reference(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "a.png")
    assert next(OmniDocBench(config(tmp_path)).samples()).reference is None


def test_ids_stay_short_and_unique(tmp_path: Path) -> None:
    paths = [
        tmp_path / "images/a.png",
        tmp_path / "other/a.png",
        Path("/elsewhere/a.png"),
        tmp_path / "images/b.png",
    ]
    assert sample_ids(paths, tmp_path) == ["a.png", "other/a.png", "/elsewhere/a.png", "b.png"]
    assert len(set(sample_ids([*paths, *paths], tmp_path))) == 8


def test_naming_looks_at_each_of_many_names_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    class Name(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    monkeypatch.setattr(omnidocbench, "printable", lambda path: Name(path))
    paths = [Path(f"/data/{number // 10_000}/{number % 10_000}.png") for number in range(20_000)]
    ids = sample_ids(paths, Path("/data"))
    assert len(set(ids)) == 20_000
    assert ids[:2] == ["0/0.png", "0/1.png"]
    assert Name.compared < 20 * len(paths)


def test_epochs_and_determinism_through_the_data_set(tmp_path: Path) -> None:
    for index in range(5):
        picture(tmp_path / "images" / f"{index}.png", (10 + index, 10))
    sampling = SamplingConfig(num_epochs=2, num_samples_per_epoch=3, randomize=True, seed=4)
    first = [sample.id for sample in OmniDocBench(config(tmp_path, sampling=sampling)).samples()]
    dataset = OmniDocBench(config(tmp_path, sampling=sampling))
    assert [sample.id for sample in dataset.samples()] == first
    assert [sample.id for sample in dataset.samples()] == first, "going through it again gives the same"
    assert len(set(first)) == 6
    assert [name.endswith("@epoch2") for name in first] == [False] * 3 + [True] * 3


def test_exif_rotation_gives_the_upright_size(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("turned.jpg", "turned.png"):
        path = picture(tmp_path / name, (30, 50), exif=exif)
        (sample,) = OmniDocBench(config(tmp_path, fallback_patterns=[name])).samples()
        assert (sample.extra["width"], sample.extra["height"]) == (50, 30), path.name


def test_inputs_document_is_plain_and_complete(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "a.png")
    dataset = OmniDocBench(config(tmp_path, sampling=SamplingConfig(num_epochs=2)))
    document = inputs_document(dataset.samples(), dataset.problems())
    assert document["count"] == 2
    assert document["distinct"] == 1
    assert document["left_out"] == []
    assert [entry["id"] for entry in document["samples"]] == ["a.png", "a.png@epoch2"]
    assert document["samples"][0]["sha256"] == sha256_of(tmp_path / "images" / "a.png")
    path = write_inputs(tmp_path / "inputs.yaml", dataset.samples(), dataset.problems())
    assert yaml.safe_load(path.read_text()) == document
