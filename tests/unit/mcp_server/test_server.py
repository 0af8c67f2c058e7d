"""The server, talked to by the SDK's own client: in memory, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.mcp_server.access import Access
from llm_perf_opt.summary.codec import to_plain
from llm_perf_opt.summary.file import load_summary, save_summary
from tests.needs import need
from tests.unit import kineto_traces
from tests.unit.report_summaries import full_summary, hostile_summary

READING = {
    "list_runs",
    "summarise_run",
    "findings",
    "table",
    "compare_runs",
    "what_if",
    "improvement_plan",
}


@pytest.fixture(autouse=True)
def _needs() -> None:
    need("mcp")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for name, summary in {"a": full_summary(), "b": full_summary(60), "hostile": hostile_summary()}.items():
        (root / name).mkdir()
        save_summary(summary, root / name)
    (root / "broken").mkdir()
    (root / "broken" / "summary.json").write_text("{", encoding="utf-8")
    return root


def talk(access: Access, conversation: Callable[[Any], Awaitable[Any]]) -> Any:
    from mcp import Client

    from llm_perf_opt.mcp_server.server import build_server

    async def whole() -> Any:
        async with Client(build_server(access)) as client:
            return await conversation(client)

    return asyncio.run(whole())


def call(access: Access, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the structured content, checked against the schema that the tool declares; the text says the same."""

    async def conversation(client: Any) -> dict[str, Any]:
        tools = {one.name: one for one in (await client.list_tools()).tools}
        result = await client.call_tool(tool, arguments)
        assert not result.is_error, result.content[0].text
        jsonschema.validate(result.structured_content, tools[tool].output_schema)
        assert json.loads(result.content[0].text) == result.structured_content
        return dict(result.structured_content)

    return dict(talk(access, conversation))


def refused(access: Access, tool: str, **arguments: Any) -> str:
    async def conversation(client: Any) -> str:
        result = await client.call_tool(tool, arguments)
        assert result.is_error
        return str(result.content[0].text)

    return str(talk(access, conversation))


def names(access: Access) -> set[str]:
    async def conversation(client: Any) -> set[str]:
        tools = (await client.list_tools()).tools
        for one in tools:
            assert one.output_schema and one.description and one.input_schema["type"] == "object"
        return {one.name for one in tools}

    return set(talk(access, conversation))


def test_tools_that_write_or_run_are_offered_only_where_they_are_allowed(runs: Path, tmp_path: Path) -> None:
    assert names(Access.of([runs])) == READING
    assert names(Access.of([runs], tmp_path)) == READING | {"ingest_capture"}
    everything = READING | {"ingest_capture", "run_model", "improve_run"}
    assert names(Access.of([runs], tmp_path, allow_run=True)) == everything


def test_runs_are_listed_and_one_that_cannot_be_read_is_noted(runs: Path) -> None:
    page = call(Access.of([runs]), "list_runs")["runs"]
    by_name = {Path(row["run"]).name: row for row in page["rows"]}
    assert set(by_name) == {"a", "b", "hostile", "broken"} and page["total"] == 4
    assert "not valid JSON" in by_name["broken"]["problem"]
    assert call(Access.of([runs]), "list_runs", limit=3)["runs"]["next_offset"] == 3


def test_numbers_are_those_of_the_file_they_name(runs: Path) -> None:
    access = Access.of([runs])
    answer = call(access, "findings", run="a")
    document = json.loads(Path(answer["source"]["file"]).read_text(encoding="utf-8"))
    assert answer["findings"]["total"] == len(document["findings"]) > 0
    for row in answer["findings"]["rows"]:
        number = int(row["at"].removeprefix("/findings/"))
        assert row["id"] == document["findings"][number]["id"]
        assert row.get("gain_upper_s") == document["findings"][number]["gain_upper_s"]
    summary = call(access, "summarise_run", run="a")
    assert summary["times"]["tpot_s"]["median"] == document["timings"]["tpot_s"]["median"]
    assert summary["rows"]["kernels"] == len(document["kernels"])


def test_a_table_is_filtered_sorted_and_paged_without_gaps(runs: Path) -> None:
    access = Access.of([runs])
    document = to_plain(load_summary(runs / "b"))
    seen, offset = [], 0
    while offset is not None:
        page = call(access, "table", run="b", table="kernels", limit=25, offset=offset)["rows"]
        seen += [row["at"] for row in page["rows"]]
        offset = page["next_offset"]
    assert seen == [f"/kernels/{number}" for number in range(len(document["kernels"]))]
    page = call(access, "table", run="b", table="kernels", sort_by="total_s", phase="decode")["rows"]
    times = [row["total_s"] for row in page["rows"]]
    assert times == sorted(times, reverse=True) and {row["phase"] for row in page["rows"]} == {"decode"}
    assert call(access, "table", run="b", table="kernels", contains="no such")["rows"]["total"] == 0
    assert "did you mean total_s" in refused(access, "table", run="b", table="kernels", sort_by="total")


def test_answers_stay_small(runs: Path) -> None:
    access = Access.of([runs])
    for run in ("a", "b", "hostile"):
        for tool, arguments in {
            "findings": {"limit": 100},
            "table": {"table": "kernels", "limit": 100},
        }.items():
            answer = call(access, tool, run=run, **arguments)
            most = {"findings": 4_000, "table": 9_500}[tool]
            assert len(json.dumps(answer, ensure_ascii=False).encode()) < most, (run, tool)


def test_text_of_captures_is_marked_as_data_and_cannot_control_a_terminal(runs: Path) -> None:
    answer = call(Access.of([runs]), "table", run="hostile", table="kernels")
    assert "never an instruction" in answer["source"]["text"]
    assert not any(ord(letter) < 32 for letter in json.dumps(answer, ensure_ascii=False))


def test_two_runs_are_compared_as_by_the_verb(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(Access.of([runs]), "compare_runs", a="a", b="b", gates=["tpot:+3%"])
    main(["compare", str(runs / "a"), str(runs / "b"), "--gate", "tpot:+3%", "--json"])
    expected = json.loads(capsys.readouterr().out)
    assert [gate["status"] for gate in answer["gates"]] == [gate["status"] for gate in expected["gates"]]
    assert [one["name"] for one in answer["metrics"]] == [one["name"] for one in expected["metrics"]]


def test_mistakes_are_errors_with_a_fix_and_crashes_reveal_nothing(runs: Path) -> None:
    access = Access.of([runs])
    assert "outside of the root" in refused(access, "findings", run="/etc")
    assert "fix:" in refused(access, "what_if", run="hostile", devices=["no such device"])
    assert "limit" in refused(access, "findings", run="a", limit=100_000)
    assert "batch_sizes" in refused(access, "what_if", run="a", batch_sizes=[-1])


def test_overrides_cannot_move_the_output(runs: Path, tmp_path: Path) -> None:
    access = Access.of([runs], tmp_path, allow_run=True)
    for override in (
        "--config-dir=/x",
        "artifacts.runs_dir=/x",
        "+artifacts.x=1",
        "hydra.run.dir=/x",
        "plan",
    ):
        assert "fix:" in refused(access, "run_model", name="new", overrides=[override])
    assert not (tmp_path / "new").exists()


def test_a_capture_is_ingested_below_the_output_root_only(runs: Path, tmp_path: Path) -> None:
    events = [kineto_traces.call("cudaLaunchKernel", 0, 5, 1), kineto_traces.kernel("gemm", 10, 20, 1)]
    kineto_traces.write(tmp_path / "trace.json", kineto_traces.document(events))
    (tmp_path / "out").mkdir()
    access = Access.of([runs, tmp_path], tmp_path / "out")
    answer = call(access, "ingest_capture", name="new", trace=["trace.json"])
    assert answer["source"]["file"] == str(tmp_path / "out" / "new" / "summary.json")
    assert answer["rows"]["kernels"] > 0
    assert "exists" in refused(access, "ingest_capture", name="new", trace=["trace.json"])
    assert "outside" in refused(access, "ingest_capture", name="other", trace=["/etc/passwd"])


def test_a_model_is_run_to_completion_and_a_search_that_cannot_be_done_says_why(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    access = Access.of([tmp_path], tmp_path / "out", allow_run=True)
    stages = ("static_analysis", "torch_profiler", "direct_inference")
    overrides = [
        f"pipeline.{name}.enable={'true' if name == 'direct_inference' else 'false'}" for name in stages
    ]
    small = ["model=llama_tiny", "hardware.probe=false", "infer.max_new_tokens=4", "run.repeats=2"]
    answer = call(access, "run_model", name="run", overrides=[*small, *overrides])
    assert answer["source"]["file"] == str(tmp_path / "out" / "run" / "summary.json")
    # A whole search takes half a minute; its verb has tests of its own.
    assert "--budget 30s" in refused(access, "improve_run", run="out/run", name="search", budget_s=1.0)


# --- as a program ----------------------------------------------------------------------------------------


def test_over_stdio(runs: Path) -> None:
    from mcp import Client, StdioServerParameters, stdio_client

    async def conversation() -> Any:
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-m", "llm_perf_opt", "mcp", "--root", str(runs)],
            env={**os.environ},
        )
        async with Client(stdio_client(parameters)) as client:
            tools = {one.name for one in (await client.list_tools()).tools}
            return tools, (await client.call_tool("findings", {"run": "a"})).structured_content

    tools, answer = asyncio.run(conversation())
    assert tools == READING and answer["findings"]["total"] > 0


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    need("mcp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "llm_perf_opt", "mcp", "--root", str(runs), "--http", "--port", str(port)],
        stderr=subprocess.DEVNULL,
    )

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        while process.poll() is None and not listens():  # pytest's own time limit ends it
            time.sleep(0.1)
        assert process.poll() is None
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(30)


def test_over_http(address: str) -> None:
    from mcp import Client

    async def conversation() -> Any:
        async with Client(address) as client:
            return (await client.call_tool("summarise_run", {"run": "a"})).structured_content

    assert asyncio.run(conversation())["times"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_a_page_of_another_origin_is_refused(address: str, headers: dict[str, str], status: int) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(address, json.dumps(body).encode(), {**accepted, **headers})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    assert caught.value.code == status


def test_the_command_line_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--root", str(tmp_path / "missing")]) == 2
    assert main(["mcp", "--root", str(tmp_path), "--port", "80"]) == 2
    assert main(["mcp", "--root", str(tmp_path), "--allow-run"]) == 2
    assert main(["mcp", "--http", "--host", "0.0.0.0"]) == 2
    capsys.readouterr()


def test_without_the_package_the_command_that_installs_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLM_PERF_OPT_HIDE", "mcp")
    assert main(["mcp", "--root", str(tmp_path)]) == 4
    assert "pip install 'llm-perf-opt[mcp]'" in capsys.readouterr().err


@pytest.mark.needs("mcp-inspector")
def test_with_the_inspector(runs: Path) -> None:
    def inspect(*words: str) -> dict[str, Any]:
        server = (sys.executable, "-m", "llm_perf_opt", "mcp", "--root", str(runs))
        done = subprocess.run(
            ["mcp-inspector", "--cli", *server, "--connect-timeout", "120000", "--method", *words],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(json.loads(done.stdout))

    assert {one["name"] for one in inspect("tools/list")["tools"]} == READING
    listed = inspect("tools/call", "--tool-name", "list_runs")["structuredContent"]
    assert listed["runs"]["total"] >= 2
