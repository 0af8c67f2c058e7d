"""Texts that would run something, and inputs that would never end: refused before they do."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from llm_perf_opt.captures.documents import load_static
from llm_perf_opt.captures.kineto.reader import read_kineto
from llm_perf_opt.captures.ncu.csv import read_ncu_csv
from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite
from llm_perf_opt.captures.timings import load_timings
from llm_perf_opt.commands import run as run_command
from llm_perf_opt.commands.top_kernels import read_kernel_list
from llm_perf_opt.config.compose import compose_config
from llm_perf_opt.config.schema import InferConfig, ModelConfig, Weights
from llm_perf_opt.core.console.command_line import run_guarded
from llm_perf_opt.hardware.catalogue import load_catalogue
from llm_perf_opt.process.launch import run_process
from llm_perf_opt.summary.file import load_summary
from llm_perf_opt.workloads.models.loading import remote_code_allowed
from llm_perf_opt.workloads.registry import load_adapter
from tests.faults.fuzz import seeds
from tests.faults.security.check import Check, refused
from tests.unit import kineto_traces

_DEEP = b"[" * 200_000
_OVERRIDES = (
    "+hydra.callbacks.x._target_=os.mkdir",
    "hydra.callbacks={x:{_target_:os.mkdir}}",
    "hydra={callbacks:{x:{_target_:os.mkdir}}}",
    "+hydra/callbacks=mine",
    "+mine@hydra.callbacks=x",
    "hydra/launcher=rq",
    "hydra/launcher=mine",
    "hydra/launcher=basic,joblib",
    "hydra.launcher.setup=[ls]",
    "+hydra.launcher.ray.init.runtime_env.worker_process_setup_hook=os.mkdir",
    "hydra.launcher._target_=os.mkdir",
    "++hydra.launcher={_target_:os.mkdir}",
    "hydra/sweeper=nevergrad",
    "hydra/sweeper/sampler=motpe",
    "+hydra.sweeper.custom_search_space=os.mkdir",
    "+hydra.sweeper.sampler._target_=os.mkdir",
    "hydra.sweeper._target_=os.mkdir",
    "hydra/job_logging=mine",
    "+hydra.job_logging.handlers.x.class=logging.os.mkdir",
    "++hydra.hydra_logging.formatters.x={factory:os.mkdir}",
    "hydra.searchpath=[pkg://evil]",
    "model._target_=os.mkdir",
    "+model.arch._target_=os.mkdir",
    "+model.arch={_target_:os.mkdir}",
)
_SWITCHES = {
    "--experimental-rerun": ["--experimental-rerun", "x.pickle"],
    "--experimental-rerun=": ["--experimental-rerun=x.pickle"],
    "--config-path of a package": ["--config-path=pkg://evil"],
    "--config-dir of a package": ["--config-dir", "pkg://evil"],
    "a launcher beside --hydra-help": ["--hydra-help", "hydra/launcher=rq"],
    "a callback beside --cfg": ["--cfg", "job", "+hydra.callbacks.x._target_=os.mkdir"],
    "a callback beside --multirun": ["--multirun", "+hydra.callbacks.x._target_=os.mkdir"],
}


def _override(text: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        with refused("is refused"):
            compose_config([text])

    return run


def _switch(arguments: list[str]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        with refused("refused"):
            run_command.main([*arguments, f"artifacts.runs_dir={folder / 'run'}"])
        assert not (folder / "run").exists()

    return run


def _preset(text: str) -> Callable[[Path], None]:
    """A preset of somebody's directory that brings what an override may not."""

    def run(folder: Path) -> None:
        (folder / "presets" / "mine").mkdir(parents=True)
        (folder / "presets" / "mine" / "x.yaml").write_text(f"# @package _global_\n{text}\n")
        with refused("is refused"):
            compose_config(["+mine=x"], config_dir=folder / "presets")
        assert not (folder / "made").exists()

    return run


def _ordinary(folder: Path) -> None:
    """What is documented goes on working."""
    for text in (
        "hydra/launcher=basic",
        "hydra/job_logging=stdout",
        "hydra.verbose=true",
        "hydra.job.chdir=false",
    ):
        compose_config([text])


class _Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.path,))


def _pickle(name: str, read: Callable[[Path], object]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        path = folder / name
        path.write_bytes(pickle.dumps(_Bomb(folder / "unpickled")))
        with refused(name):
            read(path)
        assert not (folder / "unpickled").exists(), "it was unpickled"

    return run


def _checkpoint(folder: Path, files: dict[str, bytes], **changes: Any) -> Any:
    document = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 300, **changes,
    }  # fmt: skip
    target = folder / "checkpoint"
    target.mkdir()
    (target / "config.json").write_text(json.dumps(document))
    for name, content in files.items():
        (target / name).write_bytes(content)
    config = ModelConfig(adapter="hf_causal_lm", path=str(target), weights=Weights.real)
    return load_adapter(config, InferConfig())


def _pickled_weights(folder: Path) -> None:
    import torch

    bomb = pickle.dumps(_Bomb(folder / "unpickled"))
    adapter = _checkpoint(folder, {"pytorch_model.bin": bomb})
    with refused("safetensors"):
        adapter.build("cpu", torch.float32)
    assert not (folder / "unpickled").exists(), "it was unpickled"


def _remote_code(folder: Path) -> None:
    import torch

    code = f"import os\nos.mkdir({str(folder / 'ran')!r})\nfrom transformers import LlamaConfig as MineConfig\n".encode()
    adapter = _checkpoint(
        folder,
        {"configuration_mine.py": code},
        model_type="mine_of_this_check",
        auto_map={"AutoConfig": "configuration_mine.MineConfig"},
    )
    with refused("trust_remote_code"):
        adapter.build("meta", torch.float32)
    assert not (folder / "ran").exists(), "it ran"


def _unpinned(revision: str | None) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        with refused("trust_remote_code"):
            remote_code_allowed(ModelConfig(path="someone/model", trust_remote_code=True, revision=revision))

    return run


def _not_by_default(folder: Path) -> None:
    assert ModelConfig().trust_remote_code is False
    assert not remote_code_allowed(ModelConfig(path="someone/model"))


def _no_shell(folder: Path) -> None:
    arguments = [
        "; touch made",
        "$(touch made)",
        "`touch made`",
        "&& touch made",
        "| touch made",
        "\n touch made",
    ]
    code = "import sys; print(len(sys.argv) - 1)"
    done = run_process(
        [sys.executable, "-c", code, *arguments], log_dir=None, name="n", timeout_s=60, cwd=folder
    )
    assert done.stdout == f"{len(arguments)}\n"
    assert not list(folder.iterdir())


def _tagged_yaml(read: Callable[[Path], object]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        path = folder / "x.yaml"
        path.write_text(f"!!python/object/apply:os.mkdir ['{folder / 'made'}']\n")
        with refused("x.yaml"):
            read(path)
        assert not (folder / "made").exists()

    return run


def _template(folder: Path) -> None:
    """A chat template is a program of the checkpoint's: it runs in a sandbox."""
    from transformers import PreTrainedTokenizerFast

    from llm_perf_opt.workloads.models.model_types import templated_ids
    from llm_perf_opt.workloads.models.processors import small_tokenizer

    hostile = "{{ cycler.__init__.__globals__.os.mkdir('" + str(folder / "made") + "') }}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_backend(small_tokenizer(300, ())))
    tokenizer.chat_template = hostile
    with refused("chat template"):
        templated_ids(tokenizer, [{"role": "user", "content": "x"}], "x")
    assert not (folder / "made").exists()


def _backend(tokenizer: Any) -> Any:
    return getattr(tokenizer, "backend", None) or getattr(tokenizer, "_tokenizer", None) or tokenizer


# --- size and depth --------------------------------------------------------------------------------------


def _bomb(folder: Path) -> None:
    kernel = kineto_traces.kernel("gemm", 100.0, 10.0, 1)
    text = b'{"traceEvents": [' + b" " * (64 << 20) + json.dumps(kernel).encode() + b"]}"
    (folder / "bomb.json.gz").write_bytes(gzip.compress(text, 9))
    with refused("unpacks to more than", "LLM_PERF_OPT_MAX_UNPACK_FACTOR"):
        read_kineto(folder / "bomb.json.gz")


def _bomb_in_a_bomb(folder: Path) -> None:
    inner = gzip.compress(b" " * (64 << 20), 9)
    (folder / "bomb.json.gz").write_bytes(gzip.compress(inner, 9))
    with refused("bomb.json.gz"):
        read_kineto(folder / "bomb.json.gz")


def _large_document(folder: Path) -> None:
    (folder / "t.json").write_bytes(b" " * 2000)
    with (
        mock.patch.dict(os.environ, {"LLM_PERF_OPT_MAX_DOCUMENT_BYTES": "1000"}),
        refused("larger than 1000 bytes"),
    ):
        load_timings(folder / "t.json")


def _endless(read: Callable[[Path], object]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        (folder / "endless.json").symlink_to("/dev/zero")
        with refused("is not a regular file"):
            read(folder / "endless.json")

    return run


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe.json")
    with refused("is not a regular file"):
        load_timings(folder / "pipe.json")


def _deep(name: str, read: Callable[[Path], object]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        (folder / name).write_bytes(_DEEP)
        with refused(name.rpartition(".")[0]):
            read(folder / name)

    return run


def _deep_modules(folder: Path) -> None:
    document = seeds.statics()[0]
    document["modules"][0]["depth"] = 10**9
    (folder / "static_compute.json").write_text(json.dumps(document))
    with refused("depth"):
        load_static(folder / "static_compute.json")


def _laughs(folder: Path) -> None:
    """Ten lines of aliases that stand for ten thousand million entries."""
    lines = ['a: &a ["x","x","x","x","x","x","x","x","x","x"]']
    for before, name in zip("abcdefghi", "bcdefghij", strict=True):
        lines.append(f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]")
    (folder / "laughs.yaml").write_text("\n".join([*lines, "devices: *j"]))
    with refused("laughs.yaml"):
        load_catalogue(folder / "laughs.yaml")


def _last_resort(folder: Path) -> None:
    def fails(_: object) -> int:
        raise RecursionError("deep")

    text = io.StringIO()
    with contextlib.redirect_stderr(text), mock.patch.object(tempfile, "tempdir", str(folder)):
        assert run_guarded(fails, []) == 70
    assert "Traceback" not in text.getvalue()
    (details,) = folder.iterdir()
    assert "Traceback" in details.read_text()


def _checks() -> Iterator[Check]:
    for text in _OVERRIDES:
        yield Check("Hydra", f"override {text}", _override(text))
    for what, phrase in _SWITCHES.items():
        yield Check("Hydra", what, _switch(phrase))
    for what, text in {
        "a callback": "hydra:\n  callbacks:\n    x:\n      _target_: os.mkdir\n      path: made",
        "a launcher": "hydra:\n  launcher:\n    _target_: os.mkdir",
        "a class of logging": "hydra:\n  job_logging:\n    root: {handlers: [x]}\n    handlers: {x: {class: logging.os.mkdir}}",
        "a call of logging": "hydra:\n  hydra_logging:\n    formatters: {x: {(): os.mkdir}}",
    }.items():
        yield Check("Hydra", f"{what} in a preset", _preset(text))
    yield Check("Hydra", "what is documented works", _ordinary)
    for name, read in {
        "t.json": load_timings,
        "trace.json": read_kineto,
        "e.sqlite": read_nsys_sqlite,
    }.items():
        yield Check("unpickling", f"a pickle for {name}", _pickle(name, read))
    yield Check("unpickling", "a pickle for a page of ncu", _pickle("raw.csv", read_ncu_csv))
    yield Check("unpickling", "weights that are a pickle", _pickled_weights)
    yield Check("trust_remote_code", "code of a checkpoint does not run unasked", _remote_code)
    yield Check("trust_remote_code", "is off", _not_by_default)
    for revision in (None, "main", "v1.0"):
        yield Check("trust_remote_code", f"from a hub at revision {revision}", _unpinned(revision))
    yield Check("execution", "arguments never reach a shell", _no_shell)
    yield Check("execution", "tags of YAML in a catalogue", _tagged_yaml(load_catalogue))
    yield Check("execution", "tags of YAML in a list of kernels", _tagged_yaml(read_kernel_list))
    yield Check("execution", "a chat template stays in its sandbox", _template)
    yield Check("execution", "what nobody foresaw ends with its own exit code", _last_resort)
    yield Check("decompression", "2,000 times its size", _bomb)
    yield Check("decompression", "a packed file in a packed file", _bomb_in_a_bomb)
    yield Check("decompression", "a document above the limit", _large_document)
    yield Check("decompression", "/dev/zero for timings", _endless(load_timings))
    yield Check("decompression", "/dev/zero for a trace", _endless(read_kineto))
    yield Check("decompression", "/dev/zero for a list of kernels", _endless(read_kernel_list))
    yield Check("decompression", "a pipe that nobody writes", _pipe)
    for name, read in {
        "t.json": load_timings,
        "trace.json": read_kineto,
        "summary.json": load_summary,
        "static_compute.json": load_static,
        "x.yaml": load_catalogue,
        "kernels.yaml": read_kernel_list,
    }.items():
        yield Check("depth", f"200,000 brackets in {name}", _deep(name, read))
    yield Check("depth", "a module a thousand million levels deep", _deep_modules)
    yield Check("depth", "aliases of YAML", _laughs)


CHECKS = tuple(_checks())
