"""The CSV reader: both pages, every oddity, and files made up by hypothesis."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_perf_opt.captures.ncu.csv import read_ncu_csv
from llm_perf_opt.captures.ncu.launches import function_name, parse_dimensions
from llm_perf_opt.captures.ncu.reader import read_ncu
from llm_perf_opt.core.errors import InputError
from tests.text_facts import mentions

LEAD = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"]
LEAD += ["Grid Size", "Device", "CC"]
LONG = [*LEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type"]
LONG += ["Rule Description", "Estimated Speedup Type", "Estimated Speedup"]
SOL = "GPU Speed Of Light Throughput"
Writer = Callable[..., Path]


def as_csv(rows: Sequence[Sequence[str]], delimiter: str = ",") -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n", delimiter=delimiter).writerows(rows)
    return out.getvalue()


def lead(number: int = 0, kernel: str = "k(int)", process: str = "11") -> list[str]:
    return [
        str(number),
        process,
        "python",
        "127.0.0.1",
        kernel,
        "1",
        "7",
        "(128, 1, 1)",
        "(152, 4, 1)",
        "0",
        "12.0",
    ]


def metric(section: str, name: str, unit: str, value: str, **where: object) -> list[str]:
    return [*lead(**where), section, name, unit, value, ""]  # type: ignore[arg-type]


def rule(name: str, text: str, scope: str = "", estimate: str = "") -> list[str]:
    return [*lead(), "SpeedOfLight", "", "", "", name, "OPT", text, scope, estimate]


def raw(names: Sequence[str], units: Sequence[str], *rows: Sequence[str]) -> str:
    return as_csv([[*LEAD, *names], [*[""] * len(LEAD), *units], *rows])


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def _write(text: str, name: str = "x.csv", encoding: str = "utf-8") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding=encoding, newline="")
        return path

    return _write


def test_details_page_is_ragged_and_every_row_has_its_own_unit(write: Writer) -> None:
    rows = [
        LONG,
        metric("Command line profiler metrics", "dram__bytes_read.sum", "Mbyte", "3.35"),
        metric("Command line profiler metrics", "dram__bytes_write.sum", "byte", "0"),
        metric("Command line profiler metrics", "flop_count_hp.sum", "", "n/a"),
        metric(SOL, "Elapsed Cycles", "cycle", "46,970"),
        metric(SOL, "Memory Throughput", "%", "61.83"),
        metric("Memory Workload Analysis", "Memory Throughput", "Gbyte/s", "143.20"),
        rule("SOLBottleneck", 'Memory is more\nheavily utilized, "quoted" | <b>x</b>', "global", "38.17"),
    ]
    (launch,) = read_ncu_csv(write(as_csv(rows))).launches
    metrics = launch.metrics
    assert metrics["dram__bytes_read.sum"].value == 3.35e6
    assert metrics["dram__bytes_write.sum"].value == 0.0
    assert metrics["flop_count_hp.sum"].value is None
    assert metrics[f"{SOL}/Elapsed Cycles"].value == 46970
    assert metrics[f"{SOL}/Memory Throughput"].value == pytest.approx(0.6183)
    assert metrics["Memory Workload Analysis/Memory Throughput"].value == pytest.approx(143.2e9)
    assert (launch.grid, launch.block, launch.compute_capability) == ((152, 4, 1), (128, 1, 1), "12.0")
    (text,) = launch.rules
    assert text.text == 'Memory is more heavily utilized, "quoted" | <b>x</b>'
    assert (text.speedup_ratio, text.speedup_scope) == (pytest.approx(0.3817), "global")


def test_raw_page_takes_units_from_its_second_row(write: Writer) -> None:
    text = raw(
        ["dram__bytes_read.sum", "gpu__time_duration.sum", "launch__func_cache_config", "x__y.sum"],
        ["Mbyte", "usecond", "", ""],
        [*lead(0), "1,003.35", "23.42", "cudaFuncCachePreferNone", "n/a"],
        [*lead(1), "2", "7", "cudaFuncCachePreferNone", "5"],
    )
    first, second = read_ncu_csv(write(text)).launches
    assert first.metrics["dram__bytes_read.sum"].value == pytest.approx(1003.35e6)
    assert first.metrics["gpu__time_duration.sum"].value == pytest.approx(23.42e-6)
    assert first.metrics["launch__func_cache_config"].value is None
    assert first.metrics["launch__func_cache_config"].raw == "cudaFuncCachePreferNone"
    assert first.metrics["x__y.sum"].value is None and second.metrics["x__y.sum"].value == 5
    assert "nothing" not in first.metrics and len(first.metrics) == 4


def test_raw_page_without_units_is_refused(write: Writer) -> None:
    text = as_csv([[*LEAD, "dram__bytes_read.sum"], [*lead(), "3.35"]])
    path = write(text)
    with pytest.raises(InputError) as caught:
        read_ncu_csv(path)
    assert caught.value.data["path"] == str(path) and mentions(
        caught.value.hint, "--page raw", "--print-units base"
    )


def test_messages_and_program_output_are_not_rows(write: Writer) -> None:
    table = as_csv([LONG, metric(SOL, "Duration", "us", "6.75")])
    text = (
        '==PROF== Connected to process 11\nloading "model\n' + table + "done in 3 s\n==PROF== Disconnected\n"
    )
    capture = read_ncu_csv(write(text))
    assert capture.launches[0].metrics[f"{SOL}/Duration"].value == pytest.approx(6.75e-6)
    assert capture.messages == ["==PROF== Connected to process 11", "==PROF== Disconnected"]


def test_a_lone_quote_in_program_output_does_not_swallow_rows(write: Writer) -> None:
    first, *rest = as_csv(
        [LONG, metric(SOL, "Duration", "us", "6.75"), metric(SOL, "SM Frequency", "Ghz", "2")]
    ).splitlines(True)
    capture = read_ncu_csv(write(first + rest[0] + 'a 19" screen\n' + rest[1]))
    assert len(capture.launches[0].metrics) == 2 and capture.notes


@pytest.mark.parametrize("keep", range(2, 400, 7))
def test_a_cut_file_loses_only_its_last_row(write: Writer, keep: int) -> None:
    rows = [LONG] + [metric(SOL, f"Metric {number}", "us", "1,234.5") for number in range(30)]
    text = as_csv(rows)
    cut = text[: len(text) - keep]
    launches = read_ncu_csv(write(cut)).launches
    whole = cut.rstrip("\n").count("\n")
    values = {name: quantity.value for name, quantity in launches[0].metrics.items()}
    assert all(value == pytest.approx(1.2345e-3) for value in values.values())
    assert whole - 1 <= len(values) <= whole


def test_a_cut_is_reported(write: Writer) -> None:
    text = as_csv([LONG, metric(SOL, "Duration", "us", "6.75"), metric(SOL, "SM Frequency", "Ghz", "1.99")])
    assert read_ncu_csv(write(text)).notes == []
    path = write(text[:-10])
    capture = read_ncu_csv(path)
    assert len(capture.launches[0].metrics) == 1
    assert any(mentions(note, path.name) for note in capture.notes)


def test_a_raw_page_cut_in_its_only_row_is_refused(write: Writer) -> None:
    text = raw(["a__b.sum", "c__d.sum"], ["", ""], [*lead(), "1", "2"])
    assert len(read_ncu_csv(write(text)).launches) == 1
    path = write(text[:-6])
    with pytest.raises(InputError) as caught:
        read_ncu_csv(path)
    assert caught.value.data["path"] == str(path) and mentions(caught.value.message, "row")


def test_decimal_comma_is_recognised_from_the_whole_file(write: Writer) -> None:
    rows = [LONG, metric(SOL, "Duration", "us", "23,42"), metric(SOL, "Elapsed Cycles", "cycle", "46.970")]
    (launch,) = read_ncu_csv(write(as_csv(rows, ";"))).launches
    assert launch.metrics[f"{SOL}/Duration"].value == pytest.approx(23.42e-6)
    assert launch.metrics[f"{SOL}/Elapsed Cycles"].value == 46970
    text = raw(["a__b.sum", "c__d.sum"], ["us", "cycle"], [*lead(), "23,42", "46.970"])
    (launch,) = read_ncu_csv(write(text)).launches
    assert launch.metrics["c__d.sum"].value == 46970


def test_mixed_locales_are_refused(write: Writer) -> None:
    rows = [LONG, metric(SOL, "Duration", "us", "23,42"), metric(SOL, "Elapsed Cycles", "cycle", "46.97")]
    with pytest.raises(InputError) as caught:
        read_ncu_csv(write(as_csv(rows)))
    assert mentions(caught.value.message, "23,42", "46.97")
    text = raw(["a__b.sum", "c__d.sum"], ["us", "us"], [*lead(), "23,42", "46.97"])
    with pytest.raises(InputError) as caught:
        read_ncu_csv(write(text))
    assert mentions(caught.value.message, "23,42", "46.97")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_saved_again_on_windows(write: Writer, encoding: str) -> None:
    text = as_csv([LONG, metric(SOL, "Duration", "us", "6.75")]).replace("\n", "\r\n")
    (launch,) = read_ncu_csv(write(text, encoding=encoding)).launches
    assert launch.metrics[f"{SOL}/Duration"].value == pytest.approx(6.75e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("==WARNING== No kernels were profiled.\n", "kernels"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "ERR_NVGPUCTRPERM"),
        ('"#","Address","Source"\n"0","0x1","MOV"\n', "source page"),
        ("Time (%),Total Time (ns),Instances,Name\n24.9,12,3,k\n", "nsys"),
        ("hello\nworld\n", "Kernel Name"),
        (as_csv([LONG]), "row"),
    ],
)
def test_what_is_not_a_metric_page_is_refused_with_a_reason(write: Writer, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_ncu_csv(write(text))
    assert caught.value.hint


def test_one_label_twice_in_one_section_keeps_both_units(write: Writer) -> None:
    rows = [LONG, metric("S", "Throughput", "%", "50"), metric("S", "Throughput", "Gbyte/s", "2")]
    (launch,) = read_ncu_csv(write(as_csv(rows))).launches
    assert launch.metrics["S/Throughput"].value == 0.5
    assert launch.metrics["S/Throughput [B/s]"].value == 2e9


def test_several_launches_and_kernels_stay_apart(write: Writer) -> None:
    rows = [
        metric(SOL, "Duration", "us", str(number + 1), number=number, process=process)
        for number in range(3)
        for process in ("11", "12")
    ]
    rows.insert(0, LONG)
    launches = read_ncu_csv(write(as_csv(rows))).launches
    assert len(launches) == 6 and len({(each.process_id, each.launch_id) for each in launches}) == 6


def test_files_of_one_folder_are_joined_by_launch(tmp_path: Path) -> None:
    folder = tmp_path / f"kernel_0007_{'a' * 32}"
    folder.mkdir()
    (folder / "a.csv").write_text(as_csv([LONG, metric(SOL, "Duration", "us", "6.75")]))
    (folder / "b.csv").write_text(
        as_csv([LONG, metric(SOL, "Duration", "us", "6.7500"), metric(SOL, "SM Frequency", "Ghz", "2.0")])
    )
    (folder / "c.csv").write_text("nothing of interest")
    capture = read_ncu(tmp_path)
    (launch,) = capture.launches
    assert launch.metrics[f"{SOL}/Duration"].raw == "6.7500"
    assert (launch.rank, launch.nsys_name_md5) == (7, "a" * 32)
    assert len(launch.sources) == 2 and not launch.notes
    assert any("c.csv" in note for note in capture.notes)


def test_files_that_contradict_each_other_are_flagged(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(as_csv([LONG, metric(SOL, "Duration", "us", "6.75")]))
    (tmp_path / "b.csv").write_text(as_csv([LONG, metric(SOL, "Duration", "ms", "6.75")]))
    (launch,) = read_ncu(tmp_path).launches
    assert mentions(launch.notes[0], "Duration", "6.75 us", "6.75 ms")


def test_folders_and_paths_without_captures(tmp_path: Path) -> None:
    wrong = tmp_path / "other" / "run.nsys-rep"
    wrong.parent.mkdir()
    wrong.write_bytes(b"x")
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, hint in ((empty, ".ncu-rep"), (tmp_path / "absent.ncu-rep", ".ncu-rep"), (wrong, "--nsys")):
        with pytest.raises(InputError) as caught:
            read_ncu(path)
        assert caught.value.data["path"] == str(path) and hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void ns::f<int, (bool)0>(T1 *)", "f"),
        ("std::enable_if<!T7, void>::type internal::gemvx::kernel<int>(T13)", "kernel"),
        ("void unnamed>::CatArrayBatchedCopy<unnamed>::OpaqueType<2>, 4>(T1 *)", "CatArrayBatchedCopy"),
        ("void at::native::<unnamed>::Cat<at::native::<unnamed>::O<2>, 4>(T1 *)", "Cat"),
        ("fused__autocast_to__12152488584593855096", "fused__autocast_to__12152488584593855096"),
        ("void a::(anonymous namespace)::g<1>(int)", "g"),
        ("void <unnamed>::softmax_warp_forward<float, 6>(T2 *)", "softmax_warp_forward"),
    ],
)
def test_bare_function_names(name: str, function: str) -> None:
    assert function_name(name) == function


def test_dimensions() -> None:
    assert parse_dimensions("(152, 4, 1)") == (152, 4, 1)
    assert parse_dimensions("") is None and parse_dimensions("12") is None


TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=30)
NUMBER = st.floats(min_value=0, max_value=1e12, allow_nan=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kernels=st.lists(TEXT.filter(lambda name: name.strip() == name), min_size=1, max_size=4, unique=True),
    values=st.lists(NUMBER, min_size=1, max_size=6),
    unit=st.sampled_from([("us", 1e-6), ("Gbyte/s", 1e9), ("%", 0.01), ("", 1.0), ("inst", 1.0)]),
)
def test_any_kernel_name_and_number_reads_back(
    tmp_path: Path, kernels: list[str], values: list[float], unit: tuple[str, float]
) -> None:
    """Names may hold quotes, commas, pipes and HTML; both pages give the same values."""
    names = [f"m__{number}.sum" for number in range(len(values))]
    long_rows, wide_rows = [LONG], []
    for number, kernel in enumerate(kernels):
        cells = [f"{value:,.2f}" for value in values]
        wide_rows.append([*lead(number, kernel), *cells])
        long_rows += [
            metric("Command line profiler metrics", name, unit[0], cell, number=number, kernel=kernel)
            for name, cell in zip(names, cells, strict=True)
        ]
    (tmp_path / "long.csv").write_text(as_csv(long_rows))
    (tmp_path / "wide.csv").write_text(raw(names, [unit[0]] * len(names), *wide_rows))
    for page in ("long.csv", "wide.csv"):
        launches = read_ncu_csv(tmp_path / page).launches
        assert [launch.kernel for launch in launches] == kernels
        for launch in launches:
            for name, value in zip(names, values, strict=True):
                assert launch.metrics[name].value == pytest.approx(float(f"{value:.2f}") * unit[1])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(max_size=400), at=st.integers(0, 1000))
def test_damaged_files_are_read_or_refused_never_worse(tmp_path: Path, noise: bytes, at: int) -> None:
    good = as_csv([LONG, metric(SOL, "Duration", "us", "6.75"), rule("SOLBottleneck", "text")]).encode()
    at = min(at, len(good))
    path = tmp_path / "damaged.csv"
    path.write_bytes(good[:at] + noise + good[at:])
    try:
        read_ncu_csv(path)
    except InputError as error:
        assert error.hint
