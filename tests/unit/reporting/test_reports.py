"""The Markdown reports, the console and report.html, from summaries made by hand."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from llm_perf_opt.analysis.findings.idle import Loss
from llm_perf_opt.core import units
from llm_perf_opt.core.escape import md_text
from llm_perf_opt.core.files import atomic_write_json
from llm_perf_opt.reporting import wording
from llm_perf_opt.reporting.console import console_summary
from llm_perf_opt.reporting.html.page import inline, safe_json
from llm_perf_opt.reporting.markdown import prose
from llm_perf_opt.reporting.opening import headline_figures
from llm_perf_opt.reporting.render import write_documents
from llm_perf_opt.reporting.report import (
    MOST_ROWS,
    kernels_markdown,
    operators_markdown,
    report_html,
    report_markdown,
)
from llm_perf_opt.reporting.stakeholder import stakeholder_markdown
from llm_perf_opt.reporting.tables import Column, Row, Table, code, num, text
from llm_perf_opt.reporting.wording import BOUND_NAMES, capitalised, describe_counted, title_of
from llm_perf_opt.summary import Bound, Finding, StageInfo, Summary, Timings
from llm_perf_opt.summary.codec import to_plain
from llm_perf_opt.summary.serving import Serving
from tests.unit.report_summaries import HOSTILE, bare_summary, full_summary, hostile_summary, kernel
from tests.unit.summaries import budget, summary

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
PAGES = {
    "report.md": report_markdown,
    "stakeholder_summary.md": stakeholder_markdown,
    "kernels.md": kernels_markdown,
    "operators.md": operators_markdown,
    "console.txt": lambda summary: console_summary(summary, Path("/runs/x/report.html")) + "\n",
}
MARKDOWN = {name: render for name, render in PAGES.items() if name.endswith(".md")}


@pytest.mark.parametrize("name", PAGES)
def test_golden_pages(name: str) -> None:
    """LLM_PERF_OPT_UPDATE_GOLDEN=1 writes the pages anew; look at the difference before you commit it."""
    path, shown = GOLDEN / name, PAGES[name](full_summary())
    if os.environ.get("LLM_PERF_OPT_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Collect tags, attributes and text of markup."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def rendered(markdown: str) -> Elements:
    return Elements(MarkdownIt("gfm-like", {"linkify": False}).render(markdown))


@pytest.mark.parametrize("name", MARKDOWN)
def test_hostile_text_stays_text_in_markdown(name: str) -> None:
    elements = rendered(MARKDOWN[name](hostile_summary()))
    allowed = {"h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "code", "strong", "em"}
    allowed |= {"ul", "ol", "li", "blockquote", "a"}
    assert set(elements.tags) <= allowed
    targets = {value for key, value in elements.attributes if key == "href"}
    assert targets <= {"kernels.md", "torch_profiler/operators.md"}
    assert "window.hacked=1" in elements.text
    assert elements.tags.count("h1") == 1


@pytest.mark.parametrize("name", ["report.md", "kernels.md", "operators.md"])
def test_hostile_names_do_not_split_table_rows(name: str) -> None:
    for line in MARKDOWN[name](hostile_summary()).splitlines():
        assert "\x00" not in line and "\u202e" not in line
    for block in re.findall(r"(?:^\|.*\n)+", MARKDOWN[name](hostile_summary()), flags=re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


def test_html_holds_hostile_text_as_text_only() -> None:
    page = report_html(hostile_summary())
    elements = Elements(page)
    assert elements.tags.count("script") == 2  # the data and our own script
    assert "img" not in elements.tags
    assert not [key for key, _ in elements.attributes if key.startswith("on")]
    assert "\x00" not in page and "\u202e" not in page
    assert not [
        v for k, v in elements.attributes if k in ("href", "src") and v and not v.startswith(("#", "data:,"))
    ]


def test_html_requests_nothing_and_refuses_other_scripts() -> None:
    page = report_html(full_summary())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = policy.group(1).replace("&#39;", "'")
    assert rules.startswith("default-src 'none'")
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'", rules)
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    assert "url(" not in page and "@import" not in page and ".innerHTML" not in page


def test_safe_json_cannot_end_its_element() -> None:
    value = {"a": "</script><!--<script>&\u2028\ud800"}
    shown = safe_json(value)
    assert not set("<>&\u2028") & set(shown)
    assert json.loads(shown)["a"].startswith("</script><!--<script>&")


def test_html_holds_every_section_in_order() -> None:
    page = report_html(full_summary())
    order = re.findall(r'<section id="([^"]+)"', page)
    assert order == [
        "summary", "time", "budget", "hardware", "model", "modules", "timeline", "kernels", "operators", "what-if",
        "environment", "stages", "methods",
    ]  # fmt: skip
    summary_part = page[page.index('<section id="summary"') : page.index('<section id="time"')]
    for needed in (
        "Test-OCR",
        "99.1 %",
        "97.0 %",
        "300 ms",
        'class="swatch decode"',
        BOUND_NAMES["launch"],
        "455 ms, 45.5 %",
    ):
        assert needed in summary_part
    assert full_summary().stages["ncu"].reason in page[page.index('<section id="stages"') :]


def test_html_names_what_would_produce_missing_sections() -> None:
    page = report_html(bare_summary())
    assert re.findall(r'<section id="([^"]+)"', page) == ["summary", "environment", "absent"]
    for needed in ("--timings FILE", "pipeline.nsys.enable=true", "--static FILE", "--trace FILE"):
        assert needed in page


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("make", [bare_summary, full_summary, hostile_summary])
def test_every_page_renders_any_summary_and_missing_is_never_a_word(name: str, make: object) -> None:
    shown = PAGES[name](make())  # type: ignore[operator]
    assert shown.endswith("\n")
    assert not re.search(r"\b(None|nan|inf)\b", shown)


def test_html_of_five_hundred_kernels_is_small_and_notes_what_it_leaves_out() -> None:
    summary = full_summary()
    long = "void very_long_kernel_name<" + "at::native::Functor<float>, " * 30 + ">"
    summary.kernels = [kernel(place, name=f"{long}_{place}", counted=False) for place in range(700)]
    page = report_html(summary)
    assert len(page.encode()) < 3_000_000
    assert page.count('data-key="kernel-') == 500
    kernels = page[page.index('<section id="kernels"') :]
    assert re.search(r'<p class="quiet">[^<]*\b200\b[^<]*<code>summary\.json</code>', kernels)


@pytest.mark.parametrize("count", [1, 2, 500])
def test_kernels_page_for_any_number(count: int) -> None:
    summary = full_summary(count)
    page = kernels_markdown(summary)
    assert f"{count} kernel{'s' if count > 1 else ''}," in page
    names = page[page.index("## Full names") :]
    assert len(re.findall(r"^- \*\*\d+\*\*: `", names, flags=re.MULTILINE)) == min(count, MOST_ROWS)
    elsewhere = [line for line in page.splitlines() if "summary.json" in line]
    assert [re.findall(r"\d+", line) for line in elsewhere] == (
        [[str(count - MOST_ROWS)]] if count > MOST_ROWS else []
    )


def test_report_tables_stay_readable() -> None:
    summary = full_summary(300)
    for block in re.findall(r"(?:^\|.*\n)+", report_markdown(summary), flags=re.MULTILINE):
        assert len(block.splitlines()) <= 30


# --- the page for people who decide ---------------------------------------------------------------------------


def test_stakeholder_page_is_one_page_in_plain_language() -> None:
    page = stakeholder_markdown(full_summary())
    assert len(page.splitlines()) <= 60
    advice = re.findall(r"^(\d)\. \*\*.*?([\d.]+ ms, [\d.]+ %)", page, flags=re.MULTILINE)
    assert advice == [("1", "455 ms, 45.5 %"), ("2", "200 ms, 20.0 %"), ("3", "20.0 ms, 2.00 %")]
    for name in ("Test-OCR", "NVIDIA Test GPU"):
        page = page.replace(name, "")
    assert not re.findall(r"\b[A-Z]{2,}\b", page)
    assert not re.search(r"\b(decode|prefill|kernel|token|host|launch|cache|MFU)s?\b", page)
    assert wording.MEASUREMENT["noisy-timings"] in page


def test_every_finding_has_a_plain_explanation(repository: Path) -> None:
    analysis = repository / "src" / "llm_perf_opt" / "analysis"
    rules = [*(analysis / "findings").rglob("*.py"), analysis / "compile_account.py"]
    ids = {found for path in rules for found in re.findall(r'\bid="([a-z-]+)"', path.read_text("utf-8"))}
    ids |= set(get_args(Loss))
    assert ids == set(wording.FINDINGS) | set(wording.MEASUREMENT)
    arguments = [w for plain in wording.FINDINGS.values() for w in (plain.problem, plain.action)]
    assert not re.findall(r"\b[A-Z]{2,}\b", " ".join([*arguments, *wording.MEASUREMENT.values()]))
    assert set(wording.BOUNDS) == set(get_args(Bound))


def test_stakeholder_page_claims_nothing_without_findings_or_times() -> None:
    page = stakeholder_markdown(bare_summary())
    assert not re.search(r"^\d\.|\d [mµn]?s\b|^\|", page, flags=re.MULTILINE), "no advice, no times, no table"
    assert "report.md" in page, "where it stands what would tell more"
    # Two reasons not to trust the page: nothing was timed, and the limits of the machine are not known.
    untimed, limits = re.findall(r"^- .*$", page, flags=re.MULTILINE)
    timed = bare_summary()
    timed.timings = full_summary().timings
    assert not re.search(r"\d", untimed)
    assert [
        (line == limits, re.findall(r"\d+", line))
        for line in re.findall(r"^- .*$", stakeholder_markdown(timed), flags=re.MULTILINE)
    ] == [(False, ["9"]), (True, [])]
    planned = full_summary()
    planned.timings, planned.wall_clock = Timings(), None
    assert re.search(r"^\| [^|]+ \| 2\.10 ms \|$", stakeholder_markdown(planned), flags=re.MULTILINE)
    assert "2.10 ms" in [figure.value for figure in headline_figures(planned)]
    assert "<dd>2.10 ms</dd>" in report_html(planned)
    failed = full_summary()
    failed.run.status = "failed"
    failed.findings = [Finding("x", "A new rule speaks", None, [], None, "", "Do it", "low")]
    page = stakeholder_markdown(failed)
    assert re.search(r"\*\*[^*]*\bfailed\b[^*]*\*\*", page[: page.index("\n## ")])
    # The one thing to do, without a time that nobody knows; and a line that says there is nothing more.
    (advice,) = [part for part in page.split("\n## ") if "\n1. **" in part]
    item, action, *more = [line for line in advice.splitlines()[1:] if line]
    assert item.startswith("1. **A new rule speaks** (") and not re.search(r"\d", item[2:])
    assert action == "   - Do it." and len(more) == 1 and not re.match(r"\d", more[0])


# --- console ----------------------------------------------------------------------------------------------------


def crowded() -> Summary:
    summary = hostile_summary()
    summary.notes = ["note " + "word " * 60] * 9
    summary.stages = {f"stage{n}": StageInfo("failed", "because " + "of this " * 40) for n in range(9)}
    return summary


@pytest.mark.parametrize("make", [bare_summary, full_summary, hostile_summary, crowded])
def test_console_fits_a_screen(make: object) -> None:
    lines = console_summary(make(), Path("/r/report.html")).split("\n")  # type: ignore[operator]
    assert len(lines) <= 34 and all(len(line) < 80 for line in lines)
    assert not any("\x00" in line or "\x1b" in line for line in lines)
    assert lines[-1] == "report: /r/report.html"
    assert len(console_summary(full_summary(), Path("r")).splitlines()) <= 28


# --- pieces -----------------------------------------------------------------------------------------------------


def test_inline_code_is_escaped_piece_by_piece() -> None:
    assert inline("use `a<b>` & <i>") == "use <code>a&lt;b&gt;</code> &amp; &lt;i&gt;"
    assert inline("one ` <b>") == "one ` &lt;b&gt;"
    assert prose("use `a|b` <i>, or `c`.") == "use `a|b` &lt;i&gt;, or `c`."
    assert rendered(prose(HOSTILE)).tags == ["p", "code"] or "script" not in rendered(prose(HOSTILE)).tags


def test_tables_drop_empty_columns_and_keep_the_first() -> None:
    table = Table(
        [Column("a"), Column("b", True), Column("c", True)],
        [Row([text(None), num(None, units.seconds), num(1.0, units.seconds)]), Row([code("x"), num(None, units.count), num(None, units.seconds)])],
    )  # fmt: skip
    assert [column.label for column in table.without_empty_columns().columns] == ["a", "c"]


def test_every_page_is_written_and_the_first_is_the_one_to_open(tmp_path: Path) -> None:
    assert write_documents(full_summary(), tmp_path)[0] == tmp_path / "report.html"
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {
        "report.html", "report.md", "stakeholder_summary.md", "kernels.md", "torch_profiler/operators.md",
    }  # fmt: skip
    first = (tmp_path / "report.html").read_bytes()
    write_documents(full_summary(), tmp_path)
    assert (tmp_path / "report.html").read_bytes() == first


def test_rendering_a_finished_run_needs_no_torch(tmp_path: Path) -> None:
    atomic_write_json(tmp_path / "summary.json", to_plain(full_summary()))
    program = (
        "import sys; from pathlib import Path; from llm_perf_opt.cli import main; code = main(['report', sys.argv[1]]);"
        "heavy = [m for m in ('torch', 'transformers', 'polars') if m in sys.modules]; print('heavy', heavy, code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.rstrip().endswith("heavy [] 0"), done.stdout + done.stderr
    assert (tmp_path / "report.html").is_file()


OPTIONAL = [
    field.name
    for field in dataclasses.fields(Summary)
    if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
]


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from(OPTIONAL)))
@example({"wall_clock"})
@example({"predictions"})
@example({"utilisation"})
@example({"sources"})
@example({"static"})
def test_any_subset_of_sources_renders(absent: set[str]) -> None:
    empty, summary = bare_summary(), full_summary()
    for name in absent:
        setattr(summary, name, getattr(empty, name))
    for render in (*PAGES.values(), report_html):
        assert not re.search(r"\bNone\b", render(summary))


@pytest.mark.parametrize("kind", ["gpu", "cpu", "unknown"])
@pytest.mark.parametrize("source", ["catalogue", "probe", "user", "none"])
def test_any_hardware_renders(kind: str, source: str) -> None:
    summary = full_summary()
    summary.hardware.kind, summary.hardware.source = kind, source  # type: ignore[assignment]
    summary.hardware.peak_flops_per_s = {}
    summary.hardware.bandwidth_bytes_per_s = None
    for render in (*PAGES.values(), report_html):
        assert render(summary)


def static_only() -> Summary:
    summary = bare_summary("st")
    full = full_summary()
    summary.static, summary.what_if = full.static, full.what_if
    summary.workload = dataclasses.replace(full.workload, samples=None)
    summary.notes = ["No wall-clock timings."]
    assert summary.static is not None
    summary.static.resident_bytes = {"weights": 6 * 2.0**30, "total": 7 * 2.0**30}
    for row in summary.what_if:
        row.memory_bytes = 24 * 2.0**30
    return summary


def test_a_report_that_only_counted_opens_with_its_answer() -> None:
    page = report_html(static_only())
    opening = page[page.index('<section id="summary">') : page.index("</section>")]
    numbers = [figure.value for figure in headline_figures(static_only())]
    # Memory, where it fits, least times to the first and to each further token on the fastest device.
    assert (numbers[0], numbers[2:]) == ("7.00 GiB", ["2.00 ms", "600 µs"]) and "3.34 G parameters" in opening
    assert re.findall(r"\d+", numbers[1]) == ["2", "2"]
    for value in numbers:
        assert f"<dd>{value}</dd>" in opening
    assert opening.index("<dd>7.00 GiB</dd>") < opening.index("No wall-clock timings.")
    assert 'id="findings"' not in page and 'id="findings"' in report_html(bare_summary())
    shown = stakeholder_markdown(static_only())
    (needs,) = [line for line in shown.splitlines() if "7.00 GiB" in line]
    assert re.findall(r"\b2\b", needs) == ["2", "2"] and "RTX 4090 (24.0 GiB)" in needs
    # Nothing ran, so it does not send the reader to further findings.
    assert "report.md" not in shown and "report.md" in stakeholder_markdown(bare_summary())


def test_titles_name_the_model_or_the_capture() -> None:
    summary = bare_summary("nsys")
    assert title_of(summary) == "nsys"
    summary.sources["nsys"] = "captures/run.sqlite, captures/other.sqlite"
    assert title_of(summary) == "captures (2 captures)"
    summary.sources["nsys"] = "captures/run.sqlite"
    assert title_of(summary) == "run.sqlite"
    summary.hardware.name = "NVIDIA H100"
    assert title_of(summary) == "run.sqlite on NVIDIA H100"
    summary.workload.model, summary.workload.architecture = "causal LM", "Qwen2ForCausalLM"
    assert title_of(summary) == "Qwen2ForCausalLM"
    summary.workload.model = "Llama 3 70B"
    assert title_of(summary) == "Llama 3 70B"


def test_numbers_read_as_people_write_them() -> None:
    summary = full_summary()
    page = report_markdown(summary)
    assert " 1/s" not in page and "&lt; 50" not in page
    assert summary.static is not None
    summary.static.coverage.counted_ratio = 0.99999
    counted = describe_counted(summary.static)
    assert "99.9 %" in counted and "100 %" not in counted and "aten::softmax" in counted
    assert md_text(counted) in report_markdown(summary)
    summary.static.coverage.uncounted_ops = []
    summary.static.coverage.counted_ratio = 1.0
    counted = describe_counted(summary.static)
    assert "100 %" in counted and "99.9" not in counted and "aten::softmax" not in counted
    assert md_text(counted) in report_markdown(summary)
    summary.notes = [f"note {place}" for place in range(4)]
    assert "1 more notes" not in console_summary(summary, Path("report.html"))


def test_plain_explanations_are_plain() -> None:
    page = stakeholder_markdown(full_summary())
    everything = page + str(wording.FINDINGS) + str(wording.BOUNDS)
    for phrase in ("replay", "number format", "ieces of text", "not decided"):
        assert phrase not in everything
    summary = full_summary()
    summary.verdicts["decode"] = dataclasses.replace(summary.verdicts["decode"], bound="unknown")
    # No single cause of this phase was found: how far it is from the best takes its place.
    shown = stakeholder_markdown(summary)
    (limit,) = [
        line for line in shown.splitlines() if line.startswith(f"- {capitalised(wording.PHASES['decode'])}:")
    ]
    assert "10.0" in limit and wording.BOUNDS["unknown"] not in limit
    summary.findings = [
        dataclasses.replace(summary.findings[0], phase=phase) for phase in ("vision", "decode")
    ]
    shown = stakeholder_markdown(summary)
    problems = re.findall(r"^\d\. \*\*(.*?)\*\*", shown, flags=re.MULTILINE)
    assert [wording.FINDINGS["launch-bound"].problem in each for each in problems] == [True, True]
    assert wording.PHASES["vision"] in problems[0] and wording.PHASES["decode"] in problems[1]


def test_the_first_screen_has_one_order_everywhere() -> None:
    """Conclusion, phase bar, at most four figures, verdicts, findings, and one strip about trust."""
    summary = full_summary()
    first = summary.findings[0]
    # A finding about the measurement is never the first thing to change, whatever its place.
    summary.findings.insert(0, summary.findings.pop())
    assert summary.findings[0].id in wording.MEASUREMENT and len(headline_figures(summary)) == 4
    for page in (
        report_html(summary),
        report_markdown(summary),
        console_summary(summary, Path("r"), width=300),
    ):
        start = page.index("Decode takes 65.0 %")
        marks = [
            "is launch-bound; fix first: " + first.title,
            "Where the time goes",
            "time per output token",
            "What limits each phase",
            "What to change first",
            "The image encoder dominates",
            "How far to trust this",
            "ncu skipped",
            summary.findings[0].title,
            "The clock speed was not fixed.",
        ]
        places = [page.find(mark, start) for mark in marks]
        assert -1 not in places and places == sorted(places), dict(zip(marks, places, strict=True))
        assert page.count("How far to trust this") == 1


@pytest.mark.parametrize("width", [40, 79, 120])
def test_the_console_fits_its_terminal(width: int) -> None:
    lines = console_summary(full_summary(), Path("r"), width=width).splitlines()
    tables = [line for line in lines if "█" in line]
    assert max(len(line) for line in lines if line not in tables) <= width


@pytest.mark.parametrize(
    ("launches", "expected"), [(2.0, "Too little was captured"), (2000.0, "No bottleneck")]
)
def test_a_report_without_findings_gives_the_reason(launches: float, expected: str) -> None:
    found = summary(
        budget={"all": budget(1.0, compute=0.8, launch=0.2)}, metrics={"kernel_launches": launches}
    )
    assert expected in report_markdown(found) and expected in report_html(found)


def test_records_of_a_server_are_titled_by_the_server_else_by_their_file() -> None:
    named = summary(serving=Serving(engine="vllm", version="0.32.0"))
    assert title_of(named) == "vllm 0.32.0 under load"
    assert title_of(summary(serving=Serving(), sources={"serving": "/x/curve.json"})) == "curve.json on GPU"
