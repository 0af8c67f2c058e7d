"""Tables and sentences about devices, ranks, collectives and the owners of idle time."""

from __future__ import annotations

import pytest

from llm_perf_opt.model.static.split import Exchange, RankShare, Split
from llm_perf_opt.model.summary import Budget, BudgetPart, Summary
from llm_perf_opt.model.summary.parallel import (
    Collective,
    Communication,
    DeviceUse,
    IdleGap,
    IdleOwner,
    RankUse,
)
from llm_perf_opt.reporting.content.parallel import (
    collective_table,
    device_table,
    gap_table,
    owner_table,
    paper_table,
    rank_table,
    split_table,
)
from llm_perf_opt.reporting.content.tables import Table
from llm_perf_opt.reporting.html.page import report_html
from llm_perf_opt.reporting.markdown.report import report_markdown
from llm_perf_opt.reporting.wording import budget_text, communication_text
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
    assert (first["waits"], second["others wait for it"], second["last in"]) == ("200 ms", "200 ms", "4")


def test_collectives_gaps_and_owners() -> None:
    (row,) = cells(collective_table(full()))
    assert (row["collective"], row["bus bandwidth"], row["last rank"]) == ("all_reduce", "50.0 GB/s", "1")
    (gap,) = cells(gap_table(full()))
    assert (gap["idle for"], gap["what the host did"], gap["in"]) == ("300 ms", "data loading", "load_batch")
    assert gap_table(full()).rows[0].details == [("Python frames", "app.py(1): main → app.py(9): load")]
    (owner,) = cells(owner_table(full()))  # half a per cent is not worth a line
    assert (owner["part"], owner["time"], owner["thread"]) == ("data", "900 ms", "main")


def test_sentences_say_what_was_measured_against_what() -> None:
    assert communication_text(full()) == (
        "Communication runs for 400 ms per device, 300 ms of it with nothing else running (15.0 % of the span). A rank "
        "waits in collectives for the last one to enter for 100 ms on average. Rank 1 is last where 95.0 % of that "
        "waiting arises."
    )
    turns = full()
    assert turns.communication is not None
    turns.communication.straggler = None
    assert communication_text(turns).endswith("No single rank is the cause.")
    assert communication_text(summary()) == ""
    assert "shown is their mean" in budget_text(full())
    assert "factor: decode 2.00" in budget_text(full())
    alone = budget_text(summary(budget={"decode": budget(1.0, compute=1.0)}))
    assert alone == "Every instant of the captured time counted once: the parts of a phase sum to its span."


@pytest.mark.parametrize("render", [report_markdown, report_html])
def test_pages_hold_all_of_it_and_nothing_where_there_is_nothing(render: object) -> None:
    page = render(full())  # type: ignore[operator]
    for needed in ("load_batch", "all_reduce", "rank1.json", "Rank 1 is last where 95.0 %"):
        assert needed in page
    bare = render(summary())  # type: ignore[operator]
    assert "all_reduce" not in bare and "others wait for it" not in bare


def test_ranks_on_paper_stand_beside_what_was_measured() -> None:
    found = full()
    for row in found.ranks:
        row.weight_bytes, row.kv_bytes_per_token = 2.0**30, 2.0**10
        row.link_bytes, row.floor_s = {"decode": 2.0**20}, {"decode": 0.001}
    (first, _) = cells(paper_table(found))
    assert (first["weights"], first["cache per token"], first["over its links, step"]) == (
        "1.00 GiB",
        "1.00 KiB",
        "1.00 MiB",
    )
    assert first["step floor"] == "1.00 ms" and "prefill floor" not in first
    for page in (report_html(found), report_markdown(found)):
        assert "By rank, on paper" in page
    # A rank of which nothing was measured is in this table alone.
    found.ranks = [RankUse(3, weight_bytes=2.0**30)]
    assert (cells(rank_table(found)), [row["rank"] for row in cells(paper_table(found))]) == ([], ["3"])


def test_splits_say_what_each_rank_holds_and_says_or_why_there_are_none() -> None:
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
