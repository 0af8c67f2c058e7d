"""Ranks that meet without a limit of waiting."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from llm_perf_opt.core.errors import ToolError
from llm_perf_opt.workloads import rank_group
from tests.text_facts import tells


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


def test_without_a_place_to_meet_it_is_said(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(ToolError) as caught:
        rank_group.wait_for_all_ranks("lease", check=lambda: None)
    assert tells(caught.value.message, "MASTER_PORT") and tells(caught.value.hint, "run.log")
