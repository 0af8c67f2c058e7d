"""The conformance suite that ships with the package, on every built-in model and on the example package's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from llm_perf_opt.config.schema import CacheKind, GeneratedAudioConfig, InferConfig, ModelConfig, Weights
from llm_perf_opt.testing.models import TransformersConformance
from llm_perf_opt.workloads.base import Batch, ModelAdapter, Sample
from llm_perf_opt.workloads.datasets.audio import made_up_samples
from llm_perf_opt.workloads.models.deepseek_ocr import DeepseekOcr2Adapter, DeepseekOcrAdapter
from llm_perf_opt.workloads.models.hf_causal_lm import HfCausalLmAdapter
from llm_perf_opt.workloads.models.hf_image_text_to_text import HfImageTextToTextAdapter
from llm_perf_opt.workloads.models.hf_seq2seq import HfSeq2SeqAdapter, HfSpeechSeq2SeqAdapter
from llm_perf_opt.workloads.registry import MODEL_GROUP
from tests.conftest import REPOSITORY
from tests.families.check_towers import encoder_decoder_arch
from tests.families.vision import make_checkpoint
from tests.unit.small_workloads import infer_config, model_config, samples


class BuiltIn(TransformersConformance):
    """A tiny preset of a built-in adapter."""

    kind: ClassVar[str]
    cache: ClassVar[CacheKind] = CacheKind.dynamic

    def model_config(self) -> ModelConfig:
        return model_config(self.kind, cache=self.cache)

    def infer_config(self) -> InferConfig:
        return infer_config(self.kind, batch_size=2)

    def samples(self, folder: Path) -> Sequence[Sample]:
        return samples(self.kind, folder, 3)


class TestDeepseekOcr(BuiltIn):
    adapter_class = DeepseekOcrAdapter
    kind = "v1"


class TestDeepseekOcr2(BuiltIn):
    adapter_class = DeepseekOcr2Adapter
    kind = "v2"


class TestLlama(BuiltIn):
    adapter_class = HfCausalLmAdapter
    kind = "llama"


class TestLlamaWithStaticCache(TestLlama):
    cache = CacheKind.static


class TestLlamaWithPreallocatedCache(TestLlama):
    cache = CacheKind.preallocated


class TestMixtureOfExperts(BuiltIn):
    adapter_class = HfCausalLmAdapter
    kind = "qwen_moe"


class TestLlava(TransformersConformance):
    """A vision-language model through its own processor."""

    adapter_class = HfImageTextToTextAdapter
    folder: ClassVar[Path]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _checkpoint(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.folder = make_checkpoint("llava_next", tmp_path_factory.mktemp("llava"))

    def model_config(self) -> ModelConfig:
        return ModelConfig(
            adapter="hf_image_text_to_text", path=str(self.folder), weights=Weights.random, name="llava"
        )

    def infer_config(self) -> InferConfig:
        return InferConfig(warmup_rounds=0, batch_size=2, prompt="<image>\nFree OCR.")

    def continued(self, adapter: ModelAdapter, batch: Batch, tokens: torch.Tensor) -> Batch:
        inputs = dict(batch.inputs)
        inputs["input_ids"] = torch.cat([inputs["input_ids"], tokens], dim=1)
        if inputs["mask"] is not None:
            inputs["mask"] = torch.cat([inputs["mask"], torch.ones_like(tokens)], dim=1)
        return replace(batch, inputs=inputs, prompt_tokens=inputs["input_ids"].shape[1])


class TestT5(TransformersConformance):
    """An encoder-decoder of text."""

    adapter_class = HfSeq2SeqAdapter
    family: ClassVar[str] = "t5"

    def model_config(self) -> ModelConfig:
        return ModelConfig(
            adapter=self.adapter_class.name, arch=encoder_decoder_arch(self.family), name=self.family
        )

    def continued(self, adapter: ModelAdapter, batch: Batch, tokens: torch.Tensor) -> Batch:
        ids = torch.cat([batch.inputs["input_ids"], tokens], dim=1)
        return replace(batch, inputs={**batch.inputs, "input_ids": ids}, prompt_tokens=ids.shape[1])


class TestWhisper(TestT5):
    """An encoder-decoder of speech: every sound is filled up to the same length."""

    adapter_class = HfSpeechSeq2SeqAdapter
    family = "whisper"
    pads = False

    def samples(self, folder: Path) -> Sequence[Sample]:
        return made_up_samples(GeneratedAudioConfig(clips=3, seconds=1.5))


def _example_case() -> Any:
    """Return the example package's own test class; from its sources, so that it need not be installed."""
    folder = str(REPOSITORY / "examples" / "user_model")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("test_byte_gru").TestByteGru
    finally:
        sys.path.remove(folder)


TestExamplePackage = _example_case()


def test_every_built_in_model_is_under_test() -> None:
    ours = {
        point.load() for point in entry_points(group=MODEL_GROUP) if point.value.startswith("llm_perf_opt.")
    }
    tested = (TestDeepseekOcr, TestDeepseekOcr2, TestLlama, TestLlava, TestT5, TestWhisper)
    assert ours == {case.adapter_class for case in tested}


class _LosesItsCache(HfCausalLmAdapter):
    """Decodes as if nothing had been read before."""

    def decode_step(self, model: Any, batch: Batch, tokens: torch.Tensor, step: int, cache: Any) -> Any:
        return model(input_ids=tokens, use_cache=False).logits[:, -1]


class _SeesPadding(HfCausalLmAdapter):
    """Forgets which positions are padding."""

    def left_pad(self, sequences: Sequence[Sequence[int]], device: str) -> dict[str, Any]:
        return {**super().left_pad(sequences, device), "mask": None}


class _CountsTooLittle(HfCausalLmAdapter):
    """Leaves a phase out of the static count."""

    def static_calls(self, model: Any, shapes: Any) -> Any:
        return {"prefill": super().static_calls(model, shapes)["prefill"]}


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        (_LosesItsCache, "test_decode_continues_as_the_whole_prefix_would"),
        (_SeesPadding, "test_a_request_answers_the_same_alone_and_in_a_batch"),
    ],
)
def test_the_suite_finds_an_adapter_that_computes_something_else(
    wrong: type[ModelAdapter], test: str, tmp_path: Path
) -> None:
    case = type("Case", (TestLlama,), {"adapter_class": wrong})()
    with pytest.raises(AssertionError):
        getattr(case, test)(tmp_path)


def test_the_suite_finds_a_phase_that_is_not_counted() -> None:
    case = type("Case", (TestLlama,), {"adapter_class": _CountsTooLittle})()
    with pytest.raises(AssertionError):
        case.test_every_phase_runs_on_the_meta_device()
