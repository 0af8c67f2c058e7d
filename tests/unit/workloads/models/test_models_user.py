"""A user's own model: installed from the example package, found by entry point and by dotted path."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support import install_example
from tests.text_facts import mentions
from tests.warm import warm_server

SCRIPT = """
import json, sys
import torch
from llm_perf_opt.config.schema import DatasetConfig, InferConfig, ModelConfig
from llm_perf_opt.workloads.base import Sample, WorkloadConfig
from llm_perf_opt.workloads.engine.driver import run_workload
from llm_perf_opt.workloads.registry import load_adapter

model = ModelConfig(adapter=sys.argv[1], name="mine", arch={"hidden_size": 32})
infer = InferConfig(max_new_tokens=6, batch_size=2, no_repeat_ngram_size=3)
adapter = load_adapter(model, infer)
meta = adapter.build("meta", torch.float32)
phases = [phase for phase, call in adapter.static_calls(meta, adapter.default_shapes()).items() if call() is not None]
samples = [Sample("a", "hello there"), Sample("b", "and you"), Sample("none", ""), Sample("s", synthetic_tokens=9)]
result = run_workload(WorkloadConfig(model, infer, DatasetConfig(adapter="prompts"), "cpu", 2, 6), samples)
print(json.dumps({"phases": phases, "document": result.to_dict(), "tokens": [one.token_ids for one in result.samples]}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example package into a directory of its own."""
    return install_example("user_model", tmp_path_factory.mktemp("site"))


@pytest.mark.parametrize("adapter", ["byte_gru", "byte_gru.adapter:ByteGruAdapter"])
def test_installed_example_model_runs(adapter: str, installed: Path, tmp_path: Path) -> None:
    (tmp_path / "one_run.py").write_text(SCRIPT)
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = warm_server().run([adapter], tmp_path, environment, module="one_run", timeout_s=240)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["phases"] == ["prefill", "decode"]
    document = result["document"]
    assert mentions(document["workload"]["architecture"], "recurrent")
    assert [entry["ids"] for entry in document["samples"]] == [["a", "b"], ["s"]]
    (problem,) = document["problems"]
    assert problem.startswith("none: ") and mentions(problem, "prompt")
    repeat = document["samples"][0]["repeats"][1]
    assert repeat["vision_s"] is None
    assert set(repeat["components"]) == {"core_prefill_s", "head_prefill_s"}
    assert all(len(tokens) == 6 for tokens in result["tokens"])


def test_example_is_not_found_when_not_installed() -> None:
    from llm_perf_opt.config.schema import InferConfig, ModelConfig
    from llm_perf_opt.core.errors import ConfigError
    from llm_perf_opt.workloads.registry import load_adapter

    with pytest.raises(ConfigError) as caught:
        load_adapter(ModelConfig(adapter="byte_gru"), InferConfig())
    assert caught.value.data["key"] == "model.adapter" and mentions(
        caught.value.message, "model.adapter=byte_gru"
    )
