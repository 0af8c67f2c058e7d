"""What every model adapter must do, as a test class to derive from.

>>> class TestMyModel(ModelConformance):          # in a test file of your package    # doctest: +SKIP
...     adapter_class = MyAdapter
...     def model_config(self):
...         return ModelConfig(name="mine", arch={"hidden_size": 32})

Give it the smallest size the model has: everything runs on the CPU in float32, several times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from llm_perf_opt.config.schema import DatasetConfig, InferConfig, ModelConfig
from llm_perf_opt.core.errors import ConfigError, InputError
from llm_perf_opt.core.phases import REQUEST_PHASES
from llm_perf_opt.workloads.base import Batch, ModelAdapter, Sample, WorkloadConfig
from llm_perf_opt.workloads.engine.engine import Engine

_NEW_TOKENS = 6
_RECOMPUTED_STEPS = 3
_UNKNOWN_DIMENSION = "no_such_dimension_in_any_model"
_PROMPTS = ("What limits the speed of a large language model?", "Free OCR.", "Tell a story, please.")
_PAGE_SIZES = ((300, 200), (100, 90), (150, 400))


class ModelConformance:
    """Tests of one adapter. Set ``adapter_class``; override the methods above the tests where defaults do not fit."""

    adapter_class: ClassVar[type[ModelAdapter]]
    relative_tolerance: ClassVar[float] = 1e-3
    absolute_tolerance: ClassVar[float] = 1e-4
    """Of logits computed in two ways: the same sums in another order."""
    pads: ClassVar[bool] = True
    """Whether requests differ in length; an encoder that fills every sound up to one length has none that do."""

    def model_config(self) -> ModelConfig:
        """Return ``model.*`` of a small model."""
        return ModelConfig(name=self.adapter_class.__name__)

    def infer_config(self) -> InferConfig:
        """Return ``infer.*``; the answers of all tests are a few tokens long whatever it says."""
        return InferConfig(warmup_rounds=0, batch_size=2)

    def samples(self, folder: Path) -> Sequence[Sample]:
        """Return requests whose prompts differ in length; files they need go into ``folder``."""
        if "vision" in self.make_adapter().phases:
            return [
                Sample(f"page_{number}", path=noisy_page(folder / f"page_{number}.png", size, number))
                for number, size in enumerate(_PAGE_SIZES)
            ]
        return [Sample(f"prompt_{number}", prompt) for number, prompt in enumerate(_PROMPTS)]

    def continued(self, adapter: ModelAdapter, batch: Batch, tokens: torch.Tensor) -> Batch:
        """Return the batch as ``prepare`` would give it with ``tokens`` (``[batch, n]``) at the end of the prompts.

        The default serves adapters whose only input is ``input_ids``; override it for others.
        """
        if set(batch.inputs) != {"input_ids"}:
            pytest.skip("override `continued` to say how tokens join the prompts of this adapter")
        ids = torch.cat([batch.inputs["input_ids"], tokens], dim=1)
        return dataclasses.replace(batch, inputs={"input_ids": ids}, prompt_tokens=ids.shape[1])

    # --- helpers -----------------------------------------------------------------------------------------------

    def make_adapter(self) -> ModelAdapter:
        """Return a new adapter."""
        return self.adapter_class(self.model_config(), self.infer_config())

    def make_engine(self) -> Engine:
        """Return an engine with a newly built model on the CPU."""
        infer = dataclasses.replace(self.infer_config(), ignore_eos=True, max_new_tokens=_NEW_TOKENS)
        workload = WorkloadConfig(self.model_config(), infer, DatasetConfig(), "cpu", 1, _NEW_TOKENS)
        return Engine(workload, self.adapter_class(workload.model, workload.infer))

    # --- the class and the model -------------------------------------------------------------------------------

    def test_the_class_has_all_it_must(self) -> None:
        """It derives from the base class and leaves nothing abstract."""
        assert issubclass(self.adapter_class, ModelAdapter)
        missing = sorted(self.adapter_class.__abstractmethods__)
        assert not missing, f"the class lacks {', '.join(missing)}"
        adapter = self.make_adapter()
        assert adapter.name
        assert adapter.weights() in ("real", "random")
        assert adapter.context_tokens is None or adapter.context_tokens > 0

    def test_phases_are_known_and_in_order(self) -> None:
        """Prefill and decode always, vision or encode before them or neither."""
        phases = self.make_adapter().phases
        assert list(phases) == [phase for phase in REQUEST_PHASES if phase in phases]
        assert {"prefill", "decode"} <= set(phases)

    def test_cpu_and_meta_build_the_same_model(self) -> None:
        """On the meta device the same parameters exist, without values."""
        adapter = self.make_adapter()
        real, meta = adapter.build("cpu", torch.float32), adapter.build("meta", torch.float32)
        shapes = {name: (value.shape, value.dtype) for name, value in real.named_parameters()}
        assert shapes == {name: (value.shape, value.dtype) for name, value in meta.named_parameters()}
        assert {value.device.type for value in real.parameters()} == {"cpu"}
        assert {value.device.type for value in meta.parameters()} == {"meta"}
        assert not real.training, "build() must return a model in eval mode"

    def test_components_name_modules_of_the_model(self) -> None:
        """A label without a module would never get a time."""
        adapter = self.make_adapter()
        known = {path for path, _ in adapter.build("meta", torch.float32).named_modules()}
        wrong = {label: path for label, path in adapter.components().items() if path not in known}
        assert not wrong, f"components without a module: {wrong}"

    def test_an_unknown_dimension_is_refused_with_its_key(self) -> None:
        """A misspelt key of ``model.arch`` must not silently give another model."""
        config = self.model_config()
        wrong = dataclasses.replace(config, arch={**config.arch, _UNKNOWN_DIMENSION: 1})
        with pytest.raises(ConfigError) as caught:
            self.adapter_class(wrong, self.infer_config()).build("meta", torch.float32)
        assert _UNKNOWN_DIMENSION in caught.value.message
        assert str(caught.value.data.get("key", "")).startswith("model.arch")

    # --- requests ----------------------------------------------------------------------------------------------

    def test_a_request_without_content_is_an_input_error(self) -> None:
        """The engine leaves such a sample out by name; any other error would end the run."""
        with pytest.raises(InputError):
            self.make_adapter().prepare([Sample("empty")], "cpu", torch.float32)

    def test_a_batch_describes_its_requests(self, tmp_path: Path) -> None:
        """Names in order, and shapes for the static count that are those of the batch."""
        adapter, requests = self.make_adapter(), self.samples(tmp_path)
        batch = adapter.prepare(requests, "cpu", torch.float32)
        assert batch.sample_ids == [request.id for request in requests]
        assert batch.prompt_tokens > batch.image_tokens >= 0
        assert (batch.image_tokens > 0) == ("vision" in adapter.phases)
        shapes = adapter.shapes(batch, batch.prompt_tokens + 1)
        assert shapes.batch_size == len(requests)
        assert shapes.prompt_tokens == batch.prompt_tokens
        assert shapes.image_tokens == batch.image_tokens
        assert shapes.context_tokens == batch.prompt_tokens + 1

    # --- inference ---------------------------------------------------------------------------------------------

    def test_logits_have_one_row_per_request(self, tmp_path: Path) -> None:
        """``[batch, vocabulary]`` of prefill and decode alike, and the end tokens are in the vocabulary."""
        adapter, requests = self.make_adapter(), self.samples(tmp_path)
        model = adapter.build("cpu", torch.float32)
        batch = adapter.prepare(requests, "cpu", torch.float32)
        with torch.no_grad():
            cache = adapter.make_cache(model, batch, 2)
            first = adapter.prefill(model, batch, self._vision(adapter, model, batch), cache)
            second = adapter.decode_step(model, batch, first.argmax(-1, keepdim=True), 0, cache)
        assert first.ndim == 2
        assert first.shape[0] == len(requests)
        assert second.shape == first.shape
        assert torch.isfinite(first).all()
        assert torch.isfinite(second).all()
        assert all(0 <= token < first.shape[1] for token in adapter.eos_token_ids())
        tokens = first.argmax(-1).tolist()
        assert isinstance(adapter.text(tokens), str)
        assert isinstance(adapter.text(tokens, skip_special_tokens=True), str)

    def test_tokens_are_the_same_in_every_run(self, tmp_path: Path) -> None:
        """Of one model, and of a model built again from the same configuration."""
        requests = self.samples(tmp_path)
        engine = self.make_engine()
        first = engine.run_sample(requests)[1].token_ids
        assert engine.run_sample(requests)[1].token_ids == first
        assert self.make_engine().run_sample(requests)[1].token_ids == first
        assert all(len(row) == _NEW_TOKENS for row in first)

    def test_a_request_answers_the_same_alone_and_in_a_batch(self, tmp_path: Path) -> None:
        """Padding must not be seen."""
        engine, requests = self.make_engine(), self.samples(tmp_path)
        alone = [engine.run_sample([request]) for request in requests]
        lengths = {(batch.prompt_tokens, batch.encoder_tokens) for batch, _ in alone}
        assert len(lengths) > 1 or not self.pads, "give samples whose prompts differ in length"
        _, together = engine.run_sample(requests)
        assert together.token_ids == [answer.token_ids[0] for _, answer in alone]

    def test_decode_continues_as_the_whole_prefix_would(self, tmp_path: Path) -> None:
        """A step with the cache gives what a prefill of prompt and generated tokens gives."""
        adapter, requests = self.make_adapter(), self.samples(tmp_path)
        model = adapter.build("cpu", torch.float32)
        batch = adapter.prepare(requests, "cpu", torch.float32)
        with torch.no_grad(), adapter.decode_mode(model):
            features = self._vision(adapter, model, batch)
            cache = adapter.make_cache(model, batch, _RECOMPUTED_STEPS + 1)
            logits = adapter.prefill(model, batch, features, cache)
            generated = logits.new_empty((len(requests), 0), dtype=torch.long)
            for step in range(_RECOMPUTED_STEPS):
                token = logits.argmax(-1, keepdim=True)
                generated = torch.cat([generated, token], dim=1)
                logits = adapter.decode_step(model, batch, token, step, cache)
                prompt = adapter.prepare(requests, "cpu", torch.float32)
                longer = self.continued(adapter, prompt, generated)
                whole = adapter.prefill(model, longer, features, adapter.make_cache(model, longer, 1))
                torch.testing.assert_close(
                    logits, whole, rtol=self.relative_tolerance, atol=self.absolute_tolerance
                )
                best, chosen = whole.max(-1).values, logits.argmax(-1, keepdim=True)
                torch.testing.assert_close(
                    whole.gather(-1, chosen).squeeze(-1),
                    best,
                    rtol=self.relative_tolerance,
                    atol=self.absolute_tolerance,
                )

    def _vision(self, adapter: ModelAdapter, model: torch.nn.Module, batch: Batch) -> Any:
        if "encode" in adapter.phases:
            return adapter.encode(model, batch)
        return adapter.vision(model, batch) if "vision" in adapter.phases else None

    # --- static counts -----------------------------------------------------------------------------------------

    def test_default_shapes_are_those_of_a_request(self) -> None:
        """They fit together, and into the model's context."""
        adapter, infer = self.make_adapter(), self.infer_config()
        shapes = adapter.default_shapes()
        assert shapes.batch_size == infer.batch_size
        assert shapes.prompt_tokens > shapes.image_tokens >= 0
        assert (shapes.image_tokens > 0) == ("vision" in adapter.phases)
        assert shapes.context_tokens >= shapes.prompt_tokens
        limit = adapter.context_tokens
        assert limit is None or shapes.prompt_tokens < limit

    def test_every_phase_runs_on_the_meta_device(self) -> None:
        """FLOPs and bytes are counted there, without weights."""
        adapter = self.make_adapter()
        # The data type of accelerators: torch's grouped products have no other one on the meta device.
        calls = adapter.static_calls(adapter.build("meta", torch.bfloat16), adapter.default_shapes())
        assert set(calls) == set(adapter.phases)
        for call in calls.values():
            call()


class TransformersConformance(ModelConformance):
    """The same for adapters that derive from :class:`TransformersAdapter`, whose batches are padded on the left."""

    def continued(self, adapter: ModelAdapter, batch: Batch, tokens: torch.Tensor) -> Batch:
        """Put the tokens at the right end, where nothing is padded."""
        inputs = dict(batch.inputs)
        steps = torch.arange(1, tokens.shape[1] + 1)
        inputs["input_ids"] = torch.cat([inputs["input_ids"], tokens], dim=1)
        inputs["positions"] = torch.cat([inputs["positions"], inputs["positions"][:, -1:] + steps], dim=1)
        if inputs["mask"] is not None:
            inputs["mask"] = torch.cat([inputs["mask"], torch.ones_like(tokens)], dim=1)
        return dataclasses.replace(batch, inputs=inputs, prompt_tokens=inputs["input_ids"].shape[1])


def noisy_page(path: Path, size: tuple[int, int], seed: int) -> Path:
    """Write an image of noise: random weights then answer differently for every page."""
    import numpy as np
    from PIL import Image

    values = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(values).save(path)
    return path
