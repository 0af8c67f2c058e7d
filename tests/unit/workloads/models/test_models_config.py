"""Configurations that cannot be meant are refused with the key; choices have their effect."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.config.schema import CacheKind, Dtype, ImageMode, InferConfig, ModelConfig
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.workloads import devices
from llm_perf_opt.workloads.base import Dataset, ModelAdapter, Sample
from llm_perf_opt.workloads.engine.engine import Engine
from llm_perf_opt.workloads.models.hf_causal_lm import HfCausalLmAdapter
from llm_perf_opt.workloads.models.loading import remote_code_allowed
from llm_perf_opt.workloads.registry import load_adapter, load_dataset
from tests.text_facts import mentions
from tests.unit.small_workloads import ARCH_V1, ARCH_V2, infer_config, model_config, page, samples, workload


def refused(config: ModelConfig, infer: InferConfig | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_adapter(config, infer or InferConfig()).build("meta", torch.float32)
    return caught.value


def test_unknown_adapter_names_the_nearest() -> None:
    error = refused(ModelConfig(adapter="deepseek_orc"))
    assert error.hint is not None
    assert "deepseek_ocr" in error.hint


@pytest.mark.parametrize(
    ("adapter", "word"),
    [
        ("no_such_package.x:Y", "no_such_package"),
        ("json:Nope", "'Nope'"),
        ("json:JSONDecoder", "model.adapter=json:JSONDecoder"),
    ],
)
def test_dotted_adapter_that_is_not_one(adapter: str, word: str) -> None:
    error = refused(ModelConfig(adapter=adapter))
    assert error.data["key"] == "model.adapter" and mentions(error.message, word)


def test_an_adapter_that_inherits_nothing_is_refused_with_the_base_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class LooksLikeOne:
        components = build = prepare = prefill = decode_step = None

    monkeypatch.setattr(devices, "LooksLikeOne", LooksLikeOne, raising=False)
    error = refused(ModelConfig(adapter="llm_perf_opt.workloads.devices:LooksLikeOne"))
    assert mentions(error.message, "ModelAdapter") and error.data["key"] == "model.adapter"
    assert error.hint is not None
    assert "llm_perf_opt.workloads.base" in error.hint


def test_an_incomplete_adapter_is_refused_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoModel(ModelAdapter):
        name = "no_model"

        def weights(self) -> Any:
            return "random"

    monkeypatch.setattr(devices, "NoModel", NoModel, raising=False)
    error = refused(ModelConfig(adapter="llm_perf_opt.workloads.devices:NoModel"))
    lacking = error.message.partition("it lacks ")[2].split(", ")
    assert lacking == sorted(ModelAdapter.__abstractmethods__ - {"name", "weights"})
    assert "phases" in lacking


def test_a_data_set_needs_nothing_but_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_perf_opt.config.schema import DatasetConfig

    class Nothing(Dataset):
        pass

    class Two(Dataset):
        def samples(self) -> Iterator[Sample]:
            return iter([Sample("a", "x"), Sample("b", "y")])

    monkeypatch.setattr(devices, "Nothing", Nothing, raising=False)
    monkeypatch.setattr(devices, "Two", Two, raising=False)
    with pytest.raises(ConfigError) as caught:
        load_dataset(DatasetConfig(adapter="llm_perf_opt.workloads.devices:Nothing"))
    assert caught.value.data["key"] == "dataset.adapter" and mentions(caught.value.message, "samples")
    dataset = load_dataset(DatasetConfig(adapter="llm_perf_opt.workloads.devices:Two"))
    assert [sample.id for sample in dataset.samples()] == ["a", "b"]
    assert list(dataset.problems()) == []


def test_a_model_that_cannot_be_compiled_is_reported() -> None:
    class Plain(HfCausalLmAdapter):
        compile_decode = ModelAdapter.compile_decode

    adapter = Plain(model_config("llama"), infer_config("llama"))
    with pytest.raises(ConfigError) as caught:
        adapter.compile_decode(torch.nn.Module())
    assert caught.value.data["key"] == "model.compile"


def test_unknown_dataset_names_the_nearest() -> None:
    from llm_perf_opt.config.schema import DatasetConfig

    with pytest.raises(ConfigError, match=r"dataset\.adapter=omnidocbnch") as caught:
        load_dataset(DatasetConfig(adapter="omnidocbnch"))
    assert "omnidocbench" in str(caught.value)


def changed(arch: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(arch))
    node = copied
    *parents, last = path.split(".")
    for part in parents:
        node = node[part]
    node[last] = value
    return copied


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("text_config.hiden_size", 64, "model.arch.text_config.hiden_size"),
        ("vision_config.sam_config.layers", 3, "model.arch.vision_config.sam_config.layers"),
        ("text_config.num_attention_heads", 3, "multiple"),
        ("text_config.hidden_size", "wide", "hidden_size"),
        ("vision_config.encoder_config.hidden_size", 48, "SAM gives 32 channels"),
        ("image_token_id", 511, "leaves no room"),
        ("text_config.vocab_size", 100, "too small"),
    ],
)
@pytest.mark.parametrize("adapter", ["deepseek_ocr", "deepseek_ocr2"])
def test_wrong_dimensions_name_the_key(adapter: str, path: str, value: Any, word: str) -> None:
    arch = changed(ARCH_V1 if adapter == "deepseek_ocr" else ARCH_V2, path, value)
    with pytest.raises(ConfigError) as caught:
        made = load_adapter(ModelConfig(adapter=adapter, arch=arch), InferConfig())
        made.build("meta", torch.float32)
        made.default_shapes()
    assert word in str(caught.value)


def test_a_global_attention_index_beyond_the_layers_is_refused() -> None:
    """Only v1: the library builds v2 with any index, and so do we."""
    arch = changed(ARCH_V1, "vision_config.sam_config.global_attn_indexes", [7])
    with pytest.raises(ConfigError, match=r"\b7\b"):
        load_adapter(ModelConfig(adapter="deepseek_ocr", arch=arch), InferConfig()).build(
            "meta", torch.float32
        )


def test_misspelt_dimension_hints_at_the_right_one() -> None:
    error = refused(ModelConfig(arch=changed(ARCH_V1, "text_config.hiden_size", 64)))
    assert error.data["key"] == "model.arch.text_config.hiden_size"
    assert mentions(error.hint, "model.arch.text_config.hidden_size")


@pytest.mark.parametrize(
    ("prompt", "word"), [("Free OCR.", "has no <image>"), ("<image><image>", "has 2 <image>")]
)
def test_prompt_needs_one_image(prompt: str, word: str) -> None:
    error = refused(model_config("v1"), InferConfig(prompt=prompt))
    assert error.data["key"] == "infer.prompt"
    assert word in error.message


def test_prompt_of_a_sample_needs_one_image(tmp_path: Path) -> None:
    adapter = load_adapter(model_config("v1"), infer_config("v1"))
    with pytest.raises(InputError, match="exactly once"):
        adapter.prepare(
            [Sample("x", "no image here", page(tmp_path / "p.png", (50, 50)))], "cpu", torch.float32
        )


def test_image_beyond_the_context_is_named(tmp_path: Path) -> None:
    arch = changed(ARCH_V1, "text_config.max_position_embeddings", 200)
    adapter = load_adapter(ModelConfig(arch=arch), InferConfig(mode=ImageMode.base))
    with pytest.raises(InputError, match=r"\b28\d\b") as caught:
        adapter.prepare([Sample("big", path=page(tmp_path / "p.png", (50, 50)))], "cpu", torch.float32)
    assert mentions(caught.value.message, "big", "273", "200"), "the sample, its image, and the model's limit"


def test_ocr_needs_an_image_and_text_models_a_prompt(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_adapter(model_config("v1"), infer_config("v1")).prepare([Sample("x")], "cpu", torch.float32)
    assert mentions(caught.value.message, "x") and mentions(caught.value.hint, "dataset=omnidocbench")
    with pytest.raises(InputError) as caught:
        load_adapter(model_config("llama"), InferConfig()).prepare([Sample("x")], "cpu", torch.float32)
    assert mentions(caught.value.message, "x") and mentions(caught.value.hint, "dataset=prompts")


@pytest.mark.parametrize("mode", [ImageMode.tiny, ImageMode.large])
def test_ocr2_has_its_own_modes(mode: ImageMode) -> None:
    assert refused(model_config("v2"), InferConfig(mode=mode)).data["key"] == "infer.mode"


def test_synthetic_prompts_have_exactly_the_requested_length(tmp_path: Path) -> None:
    adapter = load_adapter(model_config("llama"), InferConfig())
    requests = [Sample("a", synthetic_tokens=37), Sample("b", synthetic_tokens=37)]
    batch = adapter.prepare(requests, "cpu", torch.float32)
    again = adapter.prepare(requests, "cpu", torch.float32)
    assert batch.inputs["input_ids"].shape == (2, 37)
    assert torch.equal(batch.inputs["input_ids"], again.inputs["input_ids"])
    assert not torch.equal(batch.inputs["input_ids"][0], batch.inputs["input_ids"][1])
    assert not set(adapter.eos_token_ids()) & set(batch.inputs["input_ids"].flatten().tolist())
    with pytest.raises(InputError, match="context is 4096"):
        adapter.prepare([Sample("c", synthetic_tokens=4096)], "cpu", torch.float32)


def test_causal_lm_sources(tmp_path: Path) -> None:
    """A preset, a file, a directory, or dimensions; overrides on top; nothing at all is an error."""
    assert refused(ModelConfig(adapter="hf_causal_lm")).data["key"] == "model.path"
    assert "llama_tiny" in str(refused(ModelConfig(adapter="hf_causal_lm", config_name="llama_tinny")).hint)
    document = {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": 400,
        "an_old_key": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(document))
    for name in (str(tmp_path), str(tmp_path / "config.json")):
        adapter = load_adapter(
            ModelConfig(adapter="hf_causal_lm", config_name=name, arch={"n_layer": 3}), InferConfig()
        )
        assert adapter.build("meta", torch.float32).config.n_layer == 3
    arch = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 300,
    }
    assert (
        load_adapter(ModelConfig(adapter="hf_causal_lm", arch=arch), InferConfig())
        .build("meta", torch.float32)
        .config.hidden_size
        == 32
    )
    assert (
        refused(ModelConfig(adapter="hf_causal_lm", arch={**arch, "num_layer": 3})).data["key"]
        == "model.arch.num_layer"
    )
    assert (
        refused(ModelConfig(adapter="hf_causal_lm", arch={"model_type": "lama"})).data["key"]
        == "model.arch.model_type"
    )
    error = refused(ModelConfig(adapter="hf_causal_lm", arch={"model_type": "vit"}))
    assert error.data["key"] == "model.arch.model_type" and mentions(error.message, "'vit'")


def test_gpt2_runs_through_the_same_engine(tmp_path: Path) -> None:
    """A model with other names for everything (n_embd, transformer.h, tied head)."""
    arch = {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": 400,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    config = ModelConfig(adapter="hf_causal_lm", arch=arch)
    engine = Engine(workload("llama"), load_adapter(config, infer_config("llama")))
    _, done = engine.run_sample(samples("llama", tmp_path, 2))
    assert done.new_tokens == 24
    assert set(done.timings.components) == {"language_model_prefill_s", "lm_head_prefill_s"}


def test_remote_code_needs_request_and_a_fixed_place(tmp_path: Path) -> None:
    assert not remote_code_allowed(ModelConfig(path="someone/model"))
    for config in (
        ModelConfig(path="someone/model", trust_remote_code=True),
        ModelConfig(path="someone/model", trust_remote_code=True, revision="main"),
        ModelConfig(path="someone/model", trust_remote_code=True, revision="v1.0"),
    ):
        with pytest.raises(ConfigError, match="trust_remote_code"):
            remote_code_allowed(config)
    assert remote_code_allowed(ModelConfig(path="someone/model", trust_remote_code=True, revision="a" * 40))
    assert remote_code_allowed(ModelConfig(path=str(tmp_path), trust_remote_code=True))


REMOTE_CONFIG = """
from transformers import LlamaConfig
class MineConfig(LlamaConfig):
    model_type = "mine_for_this_test"
"""
REMOTE_MODEL = """
from transformers import LlamaForCausalLM
from .configuration_mine import MineConfig
class MineForCausalLM(LlamaForCausalLM):
    config_class = MineConfig
    config: MineConfig
"""


def test_remote_code_runs_only_when_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same directory: refused without the switch, built by its own class with it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    (folder / "configuration_mine.py").write_text(REMOTE_CONFIG)
    (folder / "modeling_mine.py").write_text(REMOTE_MODEL)
    document = {
        "model_type": "mine_for_this_test", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 300,
        "auto_map": {"AutoConfig": "configuration_mine.MineConfig", "AutoModelForCausalLM": "modeling_mine.MineForCausalLM"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(document))
    from llm_perf_opt.config.schema import Weights

    config = ModelConfig(adapter="hf_causal_lm", path=str(folder), weights=Weights.random)
    assert refused(config).data["key"] == "model.trust_remote_code"
    trusted = ModelConfig(
        adapter="hf_causal_lm", path=str(folder), weights=Weights.random, trust_remote_code=True
    )
    assert (
        type(load_adapter(trusted, InferConfig()).build("meta", torch.float32)).__name__ == "MineForCausalLM"
    )


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_attention_choice_reaches_the_model(implementation: str) -> None:
    model = load_adapter(model_config("llama", attn_implementation=implementation), InferConfig()).build(
        "meta", torch.float32
    )
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm", "eager"])
def test_experts_choice_reaches_the_model_and_keeps_the_answer(implementation: str, tmp_path: Path) -> None:
    requests = samples("v1", tmp_path, 1)
    plain = Engine(workload("v1")).run_sample(requests)[1].token_ids
    chosen = Engine(workload("v1", model={"experts_implementation": implementation}))
    assert chosen.model.config.text_config._experts_implementation == implementation
    assert chosen.run_sample(requests)[1].token_ids == plain


def test_unknown_implementations_are_refused() -> None:
    for change in (
        {"attn_implementation": "flash_attention_9"},
        {"attn_implementation": "flash_attention_2"},
        {"experts_implementation": "magic"},
    ):
        error = refused(model_config("v1", **change))
        assert next(iter(change.values())) in error.message


def test_compile_needs_a_static_cache() -> None:
    assert refused(model_config("llama", compile=True)).data["key"] == "model.compile"
    load_adapter(model_config("llama", compile=True, cache=CacheKind.static), InferConfig())


def test_dtype_choice() -> None:
    assert devices.resolve_dtype(Dtype.auto, "cpu") is torch.float32
    assert devices.resolve_dtype(Dtype.float32, "cpu") is torch.float32
    assert devices.resolve_dtype(Dtype.bfloat16, "meta") is torch.bfloat16


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "illegal instruction"),
        ("raise RuntimeError('no such kernel')", "no such kernel"),
    ],
)
def test_dtype_that_crashes_is_a_message(program: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial runs in a child, which may die; this process does not."""
    monkeypatch.setattr(devices, "_PROBE", program.replace("{", "{{").replace("}", "}}"))
    devices.cpu_problem.cache_clear()
    with pytest.raises(ConfigError, match=r"model\.dtype=bfloat16") as caught:
        devices.resolve_dtype(Dtype.bfloat16, "cpu")
    devices.cpu_problem.cache_clear()
    assert word in caught.value.message
    assert "ONEDNN_MAX_CPU_ISA" in str(caught.value.hint)


def test_dtype_trial_is_real() -> None:
    """Whatever this CPU can do, the answer agrees with a child that tries."""
    import subprocess

    code = "import torch; a = torch.ones(256, 256, dtype=torch.bfloat16); print((a @ a).sum())"
    works = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False).returncode
        == 0
    )
    assert (devices.cpu_problem("bfloat16") is None) == works
