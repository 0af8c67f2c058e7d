"""Checkpoints that cannot be used: exit 3 where the file is at fault, with what is wrong in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.faults.matrix.case import QUICK, Case

_LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "max_position_embeddings": 128,
}  # fmt: skip


def _checkpoint(files: dict[str, Any], *more: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        target = folder / "checkpoint"
        target.mkdir()
        for name, content in files.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            (target / name).write_bytes(data)
        quick = [part for part in QUICK if not part.startswith("model=")]
        return [
            "run", "model=hf_causal_lm", f"model.path={target}", *quick, *more, f"artifacts.runs_dir={folder / 'run'}",
        ]  # fmt: skip

    return build


def _named(path: str) -> Callable[[Path], list[str]]:
    def build(folder: Path) -> list[str]:
        (folder / "file").write_text("x")
        quick = [part for part in QUICK if not part.startswith("model=")]
        where = path.replace("{folder}", str(folder))
        return [
            "run",
            "model=hf_causal_lm",
            f"model.path={where}",
            *quick,
            f"artifacts.runs_dir={folder / 'run'}",
        ]

    return build


def _cases() -> Iterator[Case]:
    weights = b"\x10\0\0\0\0\0\0\0" + b'{"x": 1}'
    damaged: dict[str, dict[str, Any]] = {
        "no config.json": {"README.md": b"x"},
        "config.json is empty": {"config.json": b""},
        "config.json is no JSON": {"config.json": b"{"},
        "config.json is a list": {"config.json": []},
        "config.json names no model": {"config.json": {"hidden_size": 3}},
        "config.json names an unknown model": {"config.json": {**_LLAMA, "model_type": "nobody_knows"}},
        "no weights": {"config.json": _LLAMA},
        "weights that are none": {"config.json": _LLAMA, "model.safetensors": b"not tensors"},
        "half of the weights": {"config.json": _LLAMA, "model.safetensors": weights},
        "a negative dimension": {"config.json": {**_LLAMA, "hidden_size": -32}},
        "a zero dimension": {"config.json": {**_LLAMA, "num_attention_heads": 0}},
        "heads that do not divide": {"config.json": {**_LLAMA, "num_attention_heads": 5}},
        "a dimension in words": {"config.json": {**_LLAMA, "hidden_size": "many"}},
        "an index to nothing": {
            "config.json": _LLAMA,
            "model.safetensors.index.json": {"weight_map": {"a": "gone.safetensors"}},
        },
    }
    for name, files in damaged.items():
        yield Case("checkpoint", name, _checkpoint(files), 3, ("checkpoint",))
    yield Case("checkpoint", "a file", _named("{folder}/file"), 3, ("model.path",), writes_nothing=True)
    yield Case(
        "checkpoint", "nothing there", _named("{folder}/gone"), 3, ("does not exist",), writes_nothing=True
    )


CASES = tuple(_cases())
