"""Every command and Python snippet of README and docs runs.

Placeholders (``/models/…``, ``RUN_A``, ``capture.sqlite``) stand for small things that are made here. What needs a GPU
or much memory is planned instead of run; what is slow is shortened by further overrides. A block that is neither run
nor listed with a reason fails.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from llm_perf_opt.cli import main
from llm_perf_opt.config.compose import known_keys
from llm_perf_opt.config.legacy import LEGACY_KEYS
from tests.needs import need
from tests.support import QUICK, REPOSITORY, cli
from tests.unit.captures.ncu.test_ncu_csv import lead, raw
from tests.unit.nsys_exports import call, kernel, nvtx, write_export
from tests.unit.serving_records import Plan, simulate, write_lines

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]

_ENGINE = "needs an engine; tests/integration/engines runs the like of it on real ones"
_SERVE = "tests/integration/test_serve.py runs the like of it on real servers"
_INSTALL = "scripts/check-install.py installs into environments of their own"
_MCP = "waits for a client; tests/unit/mcp_server runs the like of it"
_RANKS = "tests/integration/test_ranks.py runs the like of it"
_RANK_CAPTURES = "tests/integration/test_ranks.py makes such a capture with the real tool, and reads it"
NOT_RUN = {
    "make profile": "makes a virtual environment from the network; CI runs it",
    'make profile RUN_ARGS="infer.max_new_tokens=64 run.repeats=5"': "the same",
    "make test": "runs this test",
    "make mutants MODULE=analysis/ledger.py": "minutes",
    'make mutants MODULE="analysis/findings --most 25"': "minutes",
    ".venv/bin/python scripts/mutation-run.py analysis/ledger.py --list": "belongs to make mutants",
    'llm-perf-opt history tmp/runs --sql "SELECT r.commit, median(m.value) FROM runs r JOIN metrics m USING (run) WHERE m.name = '
    "'tpot' AND m.statistic = 'median' GROUP BY 1\"": "DuckDB is an extra; tests/unit/runs/history runs one where it is installed",
    "python benchmarks/compare_rates.py --out tmp/rates": "ten to twenty minutes, as it says",
    "pip install '.[slurm]'": _ENGINE,
    "llm-perf-opt run --multirun hydra/launcher=slurm hydra.launcher.partition=gpu hydra.launcher.timeout_min=30 hydra.launcher.cpus_per_task=8 model=llama3_8b infer.batch_size=1,2,4,8 model.dtype=bfloat16,float16 hydra.sweep.dir=/shared/sweeps/llama-batch": _ENGINE,
    "pip install '.[ray]'": _ENGINE,
    "RAY_worker_niceness=0 ray start --head": _ENGINE,
    "llm-perf-opt run --multirun hydra/launcher=ray_cluster hydra.launcher.ray.init.address=auto model=llama3_8b infer.batch_size=1,2,4,8 hydra.sweep.dir=/shared/sweeps/llama-batch": _ENGINE,
    "pip install '.[optuna]'": _ENGINE,
    "llm-perf-opt run --multirun hydra/sweeper=optuna_search hydra.sweeper.n_trials=30 'hydra.sweeper.direction=[minimize,maximize]' 'sweep.objective=[tpot,tokens_per_s]' 'infer.batch_size=choice(1,2,4,8,16)' 'infer.max_new_tokens=range(16,129,16)' hydra.sweep.dir=tmp/search": _ENGINE,
    "python benchmarks/improve_rates.py --out tmp/improve_rates --searches 200": "ten minutes and more",
    "torchrun --nproc-per-node 2 -m llm_perf_opt run model=hf_causal_lm model.path=CHECKPOINT": _RANKS,
    "nsys profile -s none --cpuctxsw=none -o all torchrun --nproc-per-node 2 -m llm_perf_opt run …": _RANK_CAPTURES,
    "llm-perf-opt ingest --nsys all.nsys-rep --out tmp/ranks": _RANK_CAPTURES,
    "torchrun --nproc-per-node 2 --no-python sh -c 'exec nsys profile -s none --cpuctxsw=none --session-new=r$RANK-$$ -o captures/rank%q{RANK} python bench.py'": _RANK_CAPTURES,
    "pip install '.[serve]'": _SERVE,
    "llm-perf-opt what-if served --serve --rate 2,4,8": "needs the steps of a served run; tests/unit/what_if/test_recorded.py has them",
    "make install": _INSTALL,
    "pip install .": _INSTALL,
    "pip install '.[run]'": _INSTALL,
    "pip install '.[mcp]'": _MCP,
    "llm-perf-opt mcp --root tmp/runs": _MCP,
    "llm-perf-opt mcp --root tmp/runs --http": _MCP,
    "llm-perf-opt mcp --root captures --output-root results": _MCP,
    "llm-perf-opt mcp --root tmp/runs --output-root results --allow-run": _MCP,
    "llm-perf-opt serve --model llama_tiny": _SERVE,
    "llm-perf-opt serve --engine vllm --model /models/X --rate 1,2,4,8 --slo ttft:500ms,tpot:50ms": _SERVE,
    "llm-perf-opt improve --engine vllm --model /models/X --concurrency 32 --budget 2h": _SERVE,
    "llm-perf-opt improve --engine vllm --model /models/X --rate 4 --slo ttft:500ms,tpot:50ms -- --max-num-seqs 64": _SERVE,
    "llm-perf-opt improve --engine vllm --model /models/X --concurrency 8 --try '--max-num-batched-tokens=1024'": _SERVE,
    "llm-perf-opt serve --url http://127.0.0.1:8000 --model X --concurrency 1,8,32": _SERVE,
    "llm-perf-opt run pipeline.serve.enable=true model=llama_tiny": _SERVE,
    "llm-perf-opt serve --plan …": _SERVE,
    'export PYTHONPATH=$(python -c "from llm_perf_opt.stages.serve.engines import PLUGIN; print(PLUGIN)")': _SERVE,
    "LLM_PERF_OPT_VLLM_STEPS=/tmp/steps.jsonl vllm serve MODEL --enable-logging-iteration-details --enable-per-request-metrics": _SERVE,
    "llm-perf-opt serve --url http://127.0.0.1:8000 --rate 2 --out run": _SERVE,
    "llm-perf-opt ingest --serving run/serve/requests.jsonl --serving-steps /tmp/steps.jsonl --out together": _SERVE,
}
"""Commands that are not run, with the reason."""

FRAGMENTS = {
    "class TestByteGru(ModelConformance)": "part of examples/user_model/test_byte_gru.py, which is run",
    "class TestMyPages(FileDatasetConformance)": "tests/contract/test_dataset_conformance.py runs the same shape",
    "class TestMachineNoise(StageConformance)": "part of examples/user_stage/test_machine_noise.py, which is run",
}
"""Python that is no program of its own, with the reason."""

TEXT = ("infer.max_new_tokens=4", "infer.warmup_rounds=0", "run.repeats=1", "hardware.probe=false")
FEW_LAYERS = {
    "llama3_70b": ["+model.arch.num_hidden_layers=2"],
    "deepseek_ocr": [
        "model.arch.text_config.num_hidden_layers=2",
        "model.arch.vision_config.encoder_config.num_hidden_layers=2",
        "model.arch.vision_config.sam_config.num_hidden_layers=2",
        "model.arch.vision_config.sam_config.global_attn_indexes=[1]",
    ],
}
"""Overrides that make a static count quick."""


EXAMPLE_STAGE = ["pipeline.machine_noise.samples=40", "pipeline.torch_profiler.enable=false"]


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    where: str
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command, and the output the documentation shows of it."""

    where: str
    line: str
    output: str


def blocks(pages: Sequence[Path]) -> Iterator[Block]:
    for page in pages:
        lines, start = page.read_text(encoding="utf-8").splitlines(), None
        for number, line in enumerate(lines, start=1):
            if not line.startswith("```"):
                continue
            if start is None:
                start = number
                continue
            yield Block(
                f"{page.name}:{start}", lines[start - 1][3:].strip(), "\n".join(lines[start : number - 1])
            )
            start = None


def commands(block: Block) -> Iterator[Command]:
    text = block.text.replace("\\\n", " ")
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        yield Command(block.where, " ".join(line.partition(" #")[0].split()), output.rstrip())


BLOCKS = list(blocks(PAGES))
COMMANDS = [command for block in BLOCKS if block.language == "console" for command in commands(block)]
SNIPPETS = [block for block in BLOCKS if block.language == "python"]


# --- the desk: everything the documentation speaks of, small ---------------------------------------------


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(["run", "-q", "model=llama_tiny", *TEXT, "artifacts.runs_dir=run_a"]) == 0
    finally:
        os.chdir(before)
    run = folder / "run_a"
    for name in ("run_b", "RUN_A", "RUN_B", "tmp/runs/A", "tmp/runs/B", "tmp/runs/20260101-120000"):
        shutil.copytree(run, folder / name)
    shutil.copy(run / "torch_profiler" / "trace.json.gz", folder)
    (folder / "traces").mkdir()
    for copy in ("rank0.json.gz", "rank1.json.gz", "traces/rank0.json.gz", "traces/rank1.json.gz"):
        shutil.copy(folder / "trace.json.gz", folder / copy)
    shutil.copy(run / "static_analysis" / "static_compute.json", folder)
    wall = {"samples": 20, "new_tokens": 64, "prefill_s": 0.0983, "decode_s": 0.7074}
    (folder / "wall.json").write_text(json.dumps(wall))
    (folder / "prompts.txt").write_text("one two\nthree four\n")
    for program in ("serve_bench.py", "bench.py", "serve.py"):
        (folder / program).write_text("print('done')\n")
    (folder / "bench").symlink_to("/bin/true")
    _make_captures(folder)
    _make_serving_records(folder)
    _make_pages(folder / "data" / "OmniDocBench")
    (folder / "pages.txt").write_text("images/a.png\n")
    _make_checkpoint(folder / "my-checkpoint")
    shutil.copytree(folder / "my-checkpoint", folder / "CKPT")
    (folder / "models" / "DeepSeek-OCR").mkdir(parents=True)
    (folder / "models" / "DeepSeek-OCR" / "config.json").write_text("{}")
    return folder


def _make_serving_records(folder: Path) -> None:
    simulated = simulate(Plan(requests=120))
    write_lines(folder / "steps.jsonl", simulated.vllm_steps())
    (folder / "reports-20261101").mkdir()
    for place in (folder, folder / "reports-20261101"):
        write_lines(place / "requests.jsonl", simulated.own_requests())


def _make_captures(folder: Path) -> None:
    for name in ("capture.sqlite", "run.sqlite"):
        write_export(
            folder / name,
            {
                "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1_000, 9_000, 1, 1), kernel(20_000, 29_000, 2, 1)],
                "CUPTI_ACTIVITY_KIND_RUNTIME": [call(500, 900, 1, 2), call(15_000, 16_000, 2, 2)],
                "NVTX_EVENTS": [nvtx(100, 10_000, "prefill"), nvtx(12_000, 40_000, "decode")],
            },
            {1: "gemm_kernel(float *)", 2: "cudaLaunchKernel"},
        )
    table = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
    table += '90.0,900,9,100.0,1,1,1,0,"void ns::Sobel<float, (int)2>(uchar4 *)"\n10.0,100,1,100.0,1,1,1,0,k(int)\n'
    (folder / "captures").mkdir()
    for rank in (0, 1):
        write_export(folder / "captures" / f"rank{rank}.sqlite", {"NVTX_EVENTS": [nvtx(0, 9_000, "decode")]})
    (folder / "nsys").mkdir()
    for place in ("kern_sum.csv", "nsys/summary.csv"):
        (folder / place).write_text(table)
    counters = raw(
        ["dram__bytes_read.sum", "gpu__time_duration.sum"], ["byte", "nsecond"], [*lead(0), "1000", "100"]
    )
    for name in ("ncu", "ncu_folder", "DIR_OR_FILE"):
        (folder / name).mkdir()
        (folder / name / "raw.csv").write_text(counters)


def _make_pages(root: Path) -> None:
    (root / "images").mkdir(parents=True)
    for name in ("a.png", "b.png"):
        Image.new("RGB", (320, 240), "white").save(root / "images" / name)


def _make_checkpoint(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    expected = {
        word: number for number, word in enumerate(["<unk>", "<s>", "</s>", "one", "two", "three", "four"])
    }
    tokenizer = Tokenizer(models.WordLevel(expected, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(
        folder
    )
    shape = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(folder)


@pytest.fixture(scope="module")
def with_examples(desk: Path) -> dict[str, str]:
    """Return the environment in which the packages of ``examples/`` are installed."""
    site = desk / "site"
    points = {
        "byte_gru": ("models", "byte_gru.adapter:ByteGruAdapter"),
        "machine_noise": ("stages", "machine_noise.stage:MachineNoiseStage"),
    }
    for name, (group, target) in points.items():
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[llm_perf_opt.{group}]\n{name} = {target}\n")
    examples = [str(REPOSITORY / "examples" / name) for name in ("user_model", "user_stage")]
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return {"PYTHONPATH": os.pathsep.join([str(site), *examples, *inherited])}


# --- how each verb is run here ---------------------------------------------------------------------------


def arguments(command: Command, desk: Path) -> list[str]:
    """Return the arguments of a command as it is run here."""
    parts = shlex.split(command.line)[1:]
    parts = [re.sub(r"=/(models|data)/", f"={desk}/\\1/", word) for word in parts]
    verb, rest = parts[0], parts[1:]
    if verb == "run":
        return ["run", *_run_arguments(rest)]
    if verb == "compare" and "--run" in rest:
        place = rest.index("--run")
        quick = [*(TEXT if "model=llama_tiny" in rest else QUICK), "--rounds", "1", "--resamples", "200"]
        # Processes of their own are test_compare_run.py's.
        quick += [] if "--together" in rest else ["--together"]
        return ["compare", *rest[:place], *quick, *rest[place:]]
    if verb == "improve" and not {"--list", "--plan"} & {*rest}:
        return ["improve", "--plan", *(word for word in rest if word != "--resume")]
    return [verb, "--dry-run", *rest] if verb == "ncu-profile" else parts


def _run_arguments(parts: list[str]) -> list[str]:
    """Plan what needs a GPU, a tool or much memory; shorten the rest, where the command itself does not say."""
    line = " ".join(parts)
    if "--plan" in parts or re.search(
        r"pipeline\.(nsys|ncu)\.enable=true|run\.ranks=|llama3_8b|DeepSeek-OCR", line
    ):
        return parts if "--plan" in parts else ["--plan", *parts]
    preset = next((word.partition("=")[2] for word in parts if word.startswith("model=")), None)
    if preset is None and not re.search(r"deepseek_ocr|dataset\.|enable=false", line):
        preset, parts = "llama_tiny", [*parts, "model=llama_tiny"]  # loads sooner, and takes the same keys
    more = list(QUICK if preset in (None, "deepseek_ocr") else TEXT)
    if "pipeline.torch_profiler.enable=false" in parts:
        more = ["hardware.probe=false", *FEW_LAYERS.get(preset or "", [])]
        more += QUICK[:-1] if preset is None else []
    given = {word.partition("=")[0] for word in parts}
    # A length, or a number of repeats, that the command names may be shortened too: that it is taken is what counts.
    keep = given - {"infer.max_new_tokens", "run.repeats"}
    return [*parts, *(word for word in more if word.partition("=")[0] not in keep)]


# --- the tests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.where} {command.line[:60]}")
def test_a_command_of_the_documentation_runs(
    command: Command,
    desk: Path,
    with_examples: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if command.line in NOT_RUN:
        return
    program = shlex.split(command.line)[0]
    assert program.endswith("llm-perf-opt"), f"{command.where}: neither run nor listed: {command.line}"
    text = arguments(command, desk)
    if text[0] == "ncu-profile":
        need("ncu")
    if re.search(r"byte_gru|machine_noise", command.line):
        text += ["pipeline.static_analysis.enable=false"] if "byte_gru" in command.line else EXAMPLE_STAGE
        text += ["--plan"] if "ByteGruAdapter" in command.line else []  # the same adapter under another name
        done = cli(*text, cwd=desk, env=with_examples)
        assert done.returncode == 0, done.stderr
        return
    monkeypatch.chdir(desk)
    # As in the activated environment, which the README begins with: a machine may have no other "python".
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    try:
        code = main(text)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    out, err = capsys.readouterr()
    if command.output:
        assert (out + err).rstrip() == command.output
        assert code == (2 if command.output.startswith("error:") else 0)
    else:
        assert code == 0, err


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.where)
def test_a_python_snippet_of_the_documentation_runs(
    snippet: Block, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any(mark in snippet.text for mark in FRAGMENTS):
        compile(snippet.text, snippet.where, "exec")
        return
    monkeypatch.chdir(desk)
    exec(compile(snippet.text, snippet.where, "exec"), {"__name__": "snippet"})


def test_every_command_is_in_a_block_that_is_run() -> None:
    for block in BLOCKS:
        if block.language in ("console", "python"):
            assert block.language == "python" or list(commands(block)), block.where
        else:
            assert not re.search(r"^(\$ )?(llm-perf-opt|make|python|pip) ", block.text, re.MULTILINE), (
                block.where
            )


def test_nothing_is_listed_that_is_not_there() -> None:
    lines, code = {command.line for command in COMMANDS}, "\n".join(snippet.text for snippet in SNIPPETS)
    assert set(NOT_RUN) <= lines
    assert all(mark in code for mark in FRAGMENTS)


# --- B13: only the unified schema ------------------------------------------------------------------------

OLD_SECTION = "## Keys of earlier releases"
"""The one place where old keys are named, beside what replaces them."""


def current_text(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    before, _, after = text.partition(OLD_SECTION)
    return before + after.partition("\n## ")[2]


@pytest.mark.contract("B13")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_B13_documentation_shows_no_key_of_an_earlier_release(page: Path) -> None:
    text = current_text(page)
    for entry in LEGACY_KEYS:
        old = entry.old.removesuffix(".*")
        found = re.search(rf"(?<![\w.(,]){re.escape(old)}(?:=|\.[a-z_]+=)(?!\")", text)
        assert found is None, f"{page.name}: {found.group() if found else ''}"
    assert not re.search(r"runner/stage|runner@|tmp/stage[12]/", text)


@pytest.mark.contract("B13")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_B13_every_key_that_is_set_in_the_documentation_exists(page: Path) -> None:
    wrong_on_purpose = {"pipeline.nsys.enabled"}
    sections = r"run|artifacts|model|infer|dataset|hardware|pipeline"
    for key in (
        set(re.findall(rf"(?<![\w./@])((?:{sections})(?:\.\w+)+)=", current_text(page))) - wrong_on_purpose
    ):
        mapping = key.rpartition(".")[0] in ("run.env", "run.phase_threads", "pipeline.serve.env")
        free = mapping or key.startswith("model.arch.") or ".output.extra." in key or "machine_noise" in key
        assert free or key in known_keys(), f"{page.name}: {key}"
