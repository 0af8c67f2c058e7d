"""The pages of a sweep and of a history in a real browser: they load nothing else, fit, sort, filter and unfold."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.runs.heartbeat import new_heartbeat
from llm_perf_opt.sweep.collect import read_sweep, write_sweep
from llm_perf_opt.sweep.plan import PlannedJob, new_plan, write_plan
from tests.unit.history.runs_made import make_run
from tests.unit.history.test_findings import make_search
from tests.unit.sweep.test_collect import a_job

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.needs("chromium")

HOSTILE = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
LONG = f"nsys: exit code 1: {'no permission to read counters ' * 6}"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen jobs: done, failed, interrupted, running, killed and not begun."""
    folder = tmp_path_factory.mktemp("sweep")
    planned = [
        PlannedJob(
            n, str(n), [f"infer.batch_size={2 ** (n % 4)}", f"model.dtype={('float32', HOSTILE)[n // 8]}"]
        )
        for n in range(16)
    ]
    plan = new_plan("slurm", ["infer.batch_size=…"], [], planned)
    write_plan(folder, plan)
    mine = asdict(new_heartbeat())
    special = {
        3: ("failed", {"stages": {"nsys": {"status": "failed", "reason": LONG}}}),
        4: ("interrupted", {"reason": "interrupted by SIGTERM"}),
        5: ("running", {"heartbeat": mine}),
        6: ("running", {"heartbeat": {**mine, "process_started": 1}}),
    }
    for n in range(15):
        status, fields = special.get(n, ("ok", {}))
        a_job(folder / str(n), plan.id, status, None if n in special else 0.01 * (1 + n % 4), **fields)
    write_sweep(read_sweep(folder), folder)
    return folder / "sweep.html"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty runs with a slower commit from the nineteenth on, and what came of advice."""
    root = tmp_path_factory.mktemp("runs")
    noise = np.random.default_rng(3).normal(0, 0.01, 30)
    for n in range(30):
        slow = n >= 18
        value = 0.01 * float(np.exp(noise[n])) * (1.1 if slow else 1.0)
        make_run(root, f"r{n:02d}", tpot_s=value, day=n + 1, commit=("b" if slow else "a") * 40)
    make_run(root, HOSTILE.replace("/", "|"), day=3, status="failed")
    make_search(root / "search", "confirmed", "wrong")
    assert main(["history", str(root), "--html"]) == 0
    return root / "history.html"


def opened(browser: Browser, path: Path, width: int) -> tuple[Page, list[str]]:
    """Open a page and note everything it should not do."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: None if request.url == path.as_uri() else trouble.append(request.url))
    page.goto(path.as_uri())
    return page, trouble


@pytest.mark.parametrize("width", [1300, 390])
def test_both_pages_fit_and_do_nothing_of_their_own(
    browser: Browser, sweep: Path, history: Path, width: int
) -> None:
    for path in (sweep, history):
        page, trouble = opened(browser, path, width)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("window.hacked") is None
        assert trouble == []
        page.close()


def test_a_sweep_is_looked_through(browser: Browser, sweep: Path) -> None:
    page, _ = opened(browser, sweep, 1300)
    assert json.loads(sweep.with_name("sweep.json").read_text(encoding="utf-8"))["counts"] == {
        "ok": 11, "failed": 1, "interrupted": 1, "killed": 1, "running": 1, "pending": 1,
    }  # fmt: skip
    assert re.search(r"\b16\b\D+\b11\b(?:\D+\b1\b){5}", page.inner_text("#summary"))
    # Why jobs failed is read without scrolling sideways.
    bad = page.locator("#failed tbody tr:not(.detail)")
    assert bad.locator("th").all_inner_texts() == ["3", "4", "6"]
    reason = bad.nth(0).locator("td").nth(1)
    assert reason.inner_text().startswith(f"nsys: {LONG[:20]}")
    box = reason.bounding_box()
    assert box is not None and box["x"] + box["width"] < 1300

    jobs = page.locator("#jobs tbody tr:not(.detail)")
    shown = jobs.filter(visible=True)
    assert shown.count() == 16
    page.select_option("#jobs select[data-group]", "running")
    assert shown.locator("th").all_inner_texts() == ["5"]
    page.select_option("#jobs select[data-group]", "")
    page.fill("#jobs input[data-filter]", "SIGTERM")
    assert shown.locator("th").all_inner_texts() == ["4"]
    page.fill("#jobs input[data-filter]", "")
    page.locator("#jobs thead th", has_text="Time per output token").locator("button").click()
    first = shown.nth(0).inner_text()
    page.locator("#jobs thead th", has_text="Time per output token").locator("button").click()
    assert {"10.0 ms" in first, "10.0 ms" in shown.nth(0).inner_text()} == {True, False}  # sorted both ways
    page.locator("#jobs tbody tr", has_text="failed").first.locator("button").click()
    assert LONG.strip() in page.locator("#jobs tr.detail").filter(visible=True).first.inner_text()
    page.close()


def test_a_history_is_looked_through(browser: Browser, history: Path) -> None:
    page, _ = opened(browser, history, 1300)
    assert "step changes: 1" in page.inner_text("#summary")
    row = page.locator("#changes tbody tr").first.inner_text()
    assert "worse" in row and "r18" in row and "commit aaaaaaaaaaaa → bbbbbbbbbbbb" in row
    assert "1 of 1" in page.inner_text("#findings") and "0 of 1" in page.inner_text("#findings")
    chart = page.locator("#series-0 svg").first
    assert chart.locator("circle").count() == 30
    assert chart.locator(".lpo-dash").count() == 1
    assert "worse: +1" in (chart.text_content() or "")
    page.click("nav a[href='#changes'], a[href='#changes']")
    assert page.evaluate("location.hash") == "#changes"
    assert HOSTILE.replace("/", "|") in page.inner_text("#left-out")
    page.close()
