"""Text prompts: inline, from a file, made up."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.config.schema import DatasetConfig, SamplingConfig
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads.base import Sample
from llm_perf_opt.workloads.datasets.prompts import DEFAULT_SYNTHETIC_TOKENS, PromptDataset


def samples(**values: Any) -> list[Sample]:
    return list(PromptDataset(DatasetConfig(**values)).samples())


def test_inline_prompts() -> None:
    found = samples(prompts=["one", "# two"])
    assert [sample.prompt for sample in found] == ["one", "# two"]
    assert found[0].sha256 == hashlib.sha256(b"one").hexdigest()
    assert len({sample.id for sample in found}) == 2


def test_a_text_file_is_one_prompt_per_line(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes("\ufeffone\r\n\n  indented stays\n# no comment: a prompt\n{not json\n".encode())
    assert [sample.prompt for sample in samples(prompts_file=str(path))] == [
        "one",
        "  indented stays",
        "# no comment: a prompt",
        "{not json",
    ]


@pytest.mark.parametrize("name", ["p.jsonl", "p.txt"])
def test_json_lines_by_name_or_by_content(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(
        '{"prompt": "a\\nb", "id": "x", "reference": "r"}\n\n{"prompt": "c", "id": "x"}\n{"prompt": "d"}\n'
    )
    found = samples(prompts_file=str(path))
    assert [sample.prompt for sample in found] == ["a\nb", "c", "d"]
    assert [sample.id for sample in found] == ["x", "x#3", "p_004"]
    assert found[0].reference == "r"


def test_a_wrong_json_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"text": "b"}\nnonsense\n{"prompt": " "}\n')
    with pytest.raises(InputError, match="lines 2, 3, 4") as caught:
        samples(prompts_file=str(path))
    assert caught.value.data["lines"] == [2, 3, 4]
    assert caught.value.exit_code == 3


def test_synthetic_prompts_request_exact_lengths() -> None:
    found = samples(synthetic_tokens=300, synthetic_count=3)
    assert [sample.synthetic_tokens for sample in found] == [300, 300, 300]
    assert len({sample.sha256 for sample in found}) == 3
    assert all(sample.prompt is None for sample in found)


def test_nothing_configured_means_synthetic() -> None:
    assert {sample.synthetic_tokens for sample in samples()} == {DEFAULT_SYNTHETIC_TOKENS}


def test_sampling_applies() -> None:
    sampling = SamplingConfig(num_epochs=2, num_samples_per_epoch=1)
    assert [sample.id for sample in samples(prompts=["a", "b"], sampling=sampling)] == [
        "prompt_000",
        "prompt_000@epoch2",
    ]


def test_a_file_below_the_root_is_found(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("x\n")
    assert samples(prompts_file="p.txt", root=str(tmp_path))[0].prompt == "x"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"prompts": []}, "dataset.prompts"),
        ({"prompts": ["a", " "]}, "dataset.prompts[1]"),
        ({"prompts": ["a"], "prompts_file": "x"}, "dataset.prompts_file"),
        ({"prompts": ["a"], "synthetic_tokens": 3}, "dataset.synthetic_tokens"),
        ({"synthetic_tokens": 0}, "dataset.synthetic_tokens"),
        ({"synthetic_count": 0}, "dataset.synthetic_count"),
    ],
)
def test_impossible_configuration(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        samples(**values)
    assert caught.value.data["key"] == key


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "prompts"), (b"\n \n", "prompts"), (b"a\n\xff\n", "line 2")],
)
def test_unusable_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        samples(prompts_file=str(path))


def test_a_missing_file_is_an_input_error() -> None:
    with pytest.raises(InputError, match="not found"):
        samples(prompts_file="/nowhere/p.txt")
