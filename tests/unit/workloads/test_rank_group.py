"""Ranks that meet without a limit of waiting."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from typing import Any

import pytest
import torch.distributed as dist

from llm_perf_opt.core.errors import ConfigError, ToolError
from llm_perf_opt.core.ranks import Rank
from llm_perf_opt.workloads import rank_group
from llm_perf_opt.workloads.rank_group import _bind_memory
from tests.text_facts import mentions


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.TCPStore:
    """Where the launcher of a group of two lets its ranks meet."""
    found = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(found.port))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    monkeypatch.setattr(rank_group, "_POLL_S", 0.0)
    monkeypatch.setattr(rank_group, "in_group", lambda: True)
    monkeypatch.setattr(rank_group, "group_size", lambda: 2)
    return found


def test_a_rank_waits_until_the_others_have_come(store: dist.TCPStore) -> None:
    turns: list[int] = []

    def check() -> None:
        turns.append(1)
        if len(turns) == 3:
            dist.PrefixStore("llm_perf_opt/lease/3", store).add("here", 1)

    rank_group.wait_for_all_ranks("lease", check=check)
    assert len(turns) == 3


def test_a_wait_can_be_ended(store: dist.TCPStore) -> None:
    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rank_group.wait_for_all_ranks("lease", check=check)


def test_without_a_meeting_place_it_is_reported(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(ToolError) as caught:
        rank_group.wait_for_all_ranks("lease", check=lambda: None)
    assert mentions(caught.value.message, "MASTER_PORT") and mentions(caught.value.hint, "run.log")


def _rank(number: int, port: int, cases: list[dict[str, str]], message: multiprocessing.Queue[Any]) -> None:
    """One rank of two: what it finds in each case."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "RANK": str(number),
    }
    rank = Rank(number, 2, 0)
    rank_group.enter_group(rank, "cpu", 120)
    found = []
    for settings in cases:
        try:
            rank_group.require_equal_settings(rank, settings)
            found.append("equal")
        except ConfigError as error:
            found.append(error.message)
    message.put(found)
    rank_group.leave_group()


def test_ranks_with_unequal_settings_all_name_the_key() -> None:
    common = {"infer.max_new_tokens": "4", "model.path": "/first/place"}
    moved = {**common, "model.path": "/second/place"}
    longer, more = {**common, "infer.max_new_tokens": "8"}, {**common, "run.repeats": "3"}
    cases = [(common, common), (common, moved), (common, longer), (more, common), (common, common)]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    forking = multiprocessing.get_context("fork")  # they have torch already
    output = forking.Queue()
    started = [
        forking.Process(target=_rank, args=(number, port, [case[number] for case in cases], output))
        for number in range(2)
    ]
    for process in started:
        process.start()
    first, second = output.get(timeout=240), output.get(timeout=240)
    for process in started:
        process.join()
    assert first == second
    assert [text == "equal" for text in first] == [True, True, False, False, True]
    assert "rank 1" in first[2] and "infer.max_new_tokens" in first[2]
    assert "run.repeats" in first[3]


def test_memory_of_a_process_is_bound_to_a_node() -> None:
    """In a process of its own: the binding lasts as long as the process."""
    code = (
        "from llm_perf_opt.core.errors import ConfigError\n"
        "from llm_perf_opt.workloads.rank_group import _bind_memory\n"
        "try:\n"
        "    _bind_memory('0')\n"
        "    print(open('/proc/self/numa_maps').read().count('bind:0') > 0)\n"
        "except ConfigError as error:\n"
        "    print(error.data['key'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # A container may forbid it; then the key is named.
    assert done.stdout.strip() in ("True", "run.memory_nodes")


@pytest.mark.parametrize("nodes", ["x", "1-", "9999"])
def test_nodes_that_are_none_are_refused_with_the_key(nodes: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _bind_memory(nodes)
    assert refused.value.data["key"] == "run.memory_nodes"
