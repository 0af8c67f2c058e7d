"""Tables and sentences about devices, ranks, collectives and the owners of idle time."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from llm_perf_opt.reporting.markdown import render_table
from llm_perf_opt.reporting.parallel_tables import (
    collective_table,
    device_table,
    gap_table,
    owner_table,
    rank_table,
    split_table,
    static_rank_table,
)
from llm_perf_opt.reporting.report import report_html, report_markdown
from llm_perf_opt.reporting.tables import Table
from llm_perf_opt.reporting.wording import describe_budget, describe_communication
from llm_perf_opt.summary import Budget, BudgetPart, Summary, Verdict
from llm_perf_opt.summary.devices import Collective, Communication, DeviceUse, IdleGap, IdleOwner, RankUse
from llm_perf_opt.summary.static import Exchange, RankShare, Split
from tests.unit.report_summaries import full_summary
from tests.unit.summaries import budget, summary

OWNER = IdleOwner("data loading", "load_batch", "main", 0.9)


def full() -> Summary:
    row = Collective("all_reduce", 4, 1e9, 0.4, 0.3, 5e10, last_rank=1, group_size=2, wait_s=0.1)
    return summary(
        budget={
            "decode": Budget(
                2.0,
                [
                    BudgetPart("compute", 1.0, 0.5),
                    BudgetPart("data", 0.9, 0.45, OWNER),
                    BudgetPart("host", 0.01, 0.005, IdleOwner("python")),
                ],
                "t.json",
                4.0,
                2.0,
            )
        },
        devices=[
            DeviceUse(0, "MI300X", 0, 2.0, 1.0, 0.5, 1.0),
            DeviceUse(1, "MI300X", 1, 2.0, 1.8, 0.9, 0.2),
        ],
        ranks=[
            RankUse(0, 0, 2.0, 0.5, waits_s=0.2, last_in=0, causes_wait_s=0.0, source="rank0.json"),
            RankUse(1, 1, 2.0, 0.9, waits_s=0.0, last_in=4, causes_wait_s=0.2, source="rank1.json"),
        ],
        communication=Communication([row], 0.4, 0.3, 0.15, 0.1, 1, 0.95),
        idle_gaps=[IdleGap(0, 0.5, 0.3, OWNER, "decode", 0, ["app.py(1): main", "app.py(9): load"])],
    )


def cells(table: Table) -> list[dict[str, str]]:
    names = [column.label for column in table.columns]
    return [dict(zip(names, [cell.text for cell in row.cells], strict=True)) for row in table.rows]


def test_devices_and_ranks_have_a_row_each() -> None:
    assert [(row["rank"], row["busy"]) for row in cells(device_table(full()))] == [
        ("0", "50.0 %"),
        ("1", "90.0 %"),
    ]
    first, second = cells(rank_table(full()))
    # Rank, span, busy; how long it waits, how often it is the last one, how long the others wait for it; its capture.
    assert list(first.values()) == ["0", "2.00 s", "50.0 %", "200 ms", "0", "0 s", "rank0.json"]
    assert list(second.values()) == ["1", "2.00 s", "90.0 %", "0 s", "4", "200 ms", "rank1.json"]


def test_collectives_gaps_and_owners() -> None:
    (row,) = cells(collective_table(full()))
    assert (row["collective"], row["bus bandwidth"], row["last rank"]) == ("all_reduce", "50.0 GB/s", "1")
    (gap,) = cells(gap_table(full()))
    # How long, since when, of which rank, device and phase; what the host did, and where.
    assert list(gap.values()) == ["300 ms", "500 ms", "0", "0", "decode", "data loading", "load_batch"]
    ((_, frames),) = gap_table(full()).rows[0].details
    assert re.findall(r"app\.py\(\d\)", frames) == ["app.py(1)", "app.py(9)"]
    (owner,) = cells(owner_table(full()))  # half a per cent is not worth a line
    assert (owner["part"], owner["time"], owner["thread"]) == ("data", "900 ms", "main")


def test_sentences_name_what_was_measured_against_what() -> None:
    # All of it, the exposed part, its share; the waiting, whom it is for, and that one's share of it.
    facts = ["400 ms", "300 ms", "15.0 %", "100 ms", "rank 1", "95.0 %"]
    assert re.findall(r"[\d.]+ (?:ms|%)|rank \d", describe_communication(full()).lower()) == facts
    turns = full()
    assert turns.communication is not None
    turns.communication.straggler = None
    shared = describe_communication(turns)
    assert re.findall(r"[\d.]+ (?:ms|%)|rank \d", shared.lower()) == facts[:4]
    turns.communication.wait_s = 0.0  # nobody waits: there is no cause to speak of
    assert len(shared) > len(describe_communication(turns)) + len("100 ms")
    assert describe_communication(summary()) == ""
    alone = describe_budget(summary(budget={"decode": budget(1.0, compute=1.0)}))
    assert alone and not re.search(r"\d", alone)
    several, one = full(), full()
    one.devices, one.ranks = one.devices[:1], []
    for each in (several, one):
        assert describe_budget(each).startswith(alone) and "decode 2.00" in describe_budget(each)
    assert len(describe_budget(several)) > len(describe_budget(one)), (
        "of several devices it says what is shown"
    )


@pytest.mark.parametrize("render", [report_markdown, report_html])
def test_pages_hold_all_of_it_and_nothing_where_there_is_nothing(render: object) -> None:
    page = render(full())  # type: ignore[operator]
    for needed in ("load_batch", "all_reduce", "rank1.json", "95.0 %"):
        assert needed in page
    bare = render(summary())  # type: ignore[operator]
    waited_for = rank_table(full()).columns[-2].label
    assert "all_reduce" not in bare and waited_for in page and waited_for not in bare


def test_counted_ranks_are_shown_next_to_what_was_measured() -> None:
    found = full()
    for row in found.ranks:
        row.weight_bytes, row.kv_bytes_per_token = 2.0**30, 2.0**10
        row.link_bytes, row.floor_s = {"decode": 2.0**20}, {"decode": 0.001}
    (first, _) = cells(static_rank_table(found))
    # Rank, weights, cache per token, what goes over its links, its floor: of a step, as of a prefill nothing is known.
    assert list(first.values()) == ["0", "1.00 GiB", "1.00 KiB", "1.00 MiB", "1.00 ms"]
    assert [value for name, value in first.items() if "step" in name] == ["1.00 MiB", "1.00 ms"]
    assert not [name for name in first if "prefill" in name]
    assert 'id="table-ranks-static"' in report_html(found)
    assert render_table(static_rank_table(found)) in report_markdown(found)
    # A rank of which nothing was measured is in this table alone.
    found.ranks = [RankUse(3, weight_bytes=2.0**30)]
    assert (cells(rank_table(found)), [row["rank"] for row in cells(static_rank_table(found))]) == ([], ["3"])


def test_splits_list_what_each_rank_stores_and_sends_or_why_there_are_none() -> None:
    found = full_summary()
    assert found.static is not None
    exchange = Exchange("decode", "all_reduce", 9, 2.0**20, 2.0**20)
    share = RankShare(0, 100, 2.0**30, 2.0**10, experts=4)
    found.static.splits = [
        Split("tensor+expert", 2, [share, share], 2.0**20, exchanges=[exchange]),
        Split("tensor", 8, reason="heads <b>too few</b>"),
    ]
    known, refused = cells(split_table(found))
    assert (known["weights per rank"], known["experts"]) == ("1.00 GiB", "4")
    assert known["collectives of a step"] == "9 × all_reduce, 1.00 MiB"
    assert (refused["ranks"], refused["not possible"]) == ("8", "heads <b>too few</b>")
    assert "heads &lt;b&gt;too few" in report_html(found)


def test_a_long_list_of_captures_is_shortened_under_sections_and_listed_once() -> None:
    files = [f"captures/rank{rank}.json.gz" for rank in range(8)]
    page = report_markdown(replace(full(), sources={"trace": ", ".join(files)}))
    assert page.count(files[7]) == 1
    assert f"{files[0]} and 7 more files" in page


def test_the_first_sentence_names_the_largest_part_and_that_of_the_verdict() -> None:
    parts = [
        BudgetPart("compute", 0.2, 0.2),
        BudgetPart("communication", 0.3, 0.3),
        BudgetPart("queue", 0.5, 0.5),
    ]
    verdict = Verdict("communication", "", [], "")
    page = report_markdown(summary(budget={"all": Budget(1.0, parts, "t.json")}, verdicts={"all": verdict}))
    assert "Queue takes 50.0 % and communication 30.0 % of the captured 1.00 s" in page
