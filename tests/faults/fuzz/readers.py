"""Every reader with the inputs it is given: a number goes in, an input and what became of it come out."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.facts import Facts
from llm_perf_opt.analysis.summarise import Subject
from llm_perf_opt.reporting.console import console_summary
from llm_perf_opt.reporting.render import write_documents, write_pages
from llm_perf_opt.runs.assemble import DeviceChoice, assemble, assemble_run, shown_sources
from llm_perf_opt.stages.facts import Part, collect, timings_facts
from llm_perf_opt.stages.ncu.facts import ncu_facts
from llm_perf_opt.stages.nsys.facts import nsys_facts
from llm_perf_opt.stages.static_analysis import static_facts
from llm_perf_opt.stages.torch_profiler.facts import trace_facts
from llm_perf_opt.summary import RunInfo, Summary
from llm_perf_opt.summary.file import check_summary, load_summary
from tests.faults.fuzz import mutate, seeds
from tests.faults.fuzz.verdict import Mismatch

_RENDERED = 0.1
"""Share of the accepted inputs whose pages are made too, the slowest part by far."""


@dataclass(frozen=True, slots=True)
class Reader:
    """One reader: makes an input in a folder, and returns what reads it."""

    name: str
    make: Callable[[random.Random, Path], Callable[[], Summary | None]]


def _summary(kind: str, read: Callable[[Path], Facts], path: Path, out: Path, *, pages: bool) -> Summary:
    facts = [collect(kind, [Part(kind, lambda: read(path))], strict=True)]
    subject = Subject(
        run=RunInfo(id="fuzz", status="ok", started="", seconds=None, command=[]),
        sources=shown_sources(facts),
    )
    assembled = assemble(subject, facts, DeviceChoice("NVIDIA H100 SXM5 80GB" if kind == "static" else None))
    check_summary(assembled.summary)
    if pages:
        write_pages(assembled.summary, assembled.facts, out)
        console_summary(assembled.summary, write_documents(assembled.summary, out)[0])
    return assembled.summary


def _file_reader(
    kind: str, name: str, read: Callable[[Path], Facts], content: Callable[[random.Random], bytes]
) -> Reader:
    def make(chance: random.Random, folder: Path) -> Callable[[], Summary | None]:
        path = folder / name
        path.write_bytes(content(chance))
        pages = chance.random() < _RENDERED
        return lambda: _summary(kind, read, path, folder / "out", pages=pages)

    return Reader(kind, make)


def _of(source: Callable[[], Sequence[Any]], change: Callable[[random.Random, Any], bytes]) -> Any:
    cached = cache(lambda: tuple(source()))
    return lambda chance: change(chance, chance.choice(cached()))


def _trace(chance: random.Random, seed: Any) -> bytes:
    text = mutate.json_input(chance, seed)
    if chance.random() < 0.1:
        return (
            mutate.change_bytes(chance, gzip.compress(text)) if chance.random() < 0.5 else gzip.compress(text)
        )
    return text


def _nsys_export(chance: random.Random, folder: Path) -> Callable[[], Summary | None]:
    home = folder.parent / "exports"
    if not home.is_dir():
        home.mkdir()
    if not any(home.iterdir()):
        seeds.exports(home)
    path = folder / "export.sqlite"
    mutate.sqlite_input(
        chance, chance.choice([home / "made.sqlite", *seeds._shared("nsys-labelled/*.sqlite")]), path
    )
    pages = chance.random() < _RENDERED
    return lambda: _summary("nsys", nsys_facts, path, folder / "out", pages=pages)


def _run_directory(changed: str) -> Callable[[random.Random, Path], Callable[[], Summary | None]]:
    def make(chance: random.Random, folder: Path) -> Callable[[], Summary | None]:
        contents = {
            "manifest.json": seeds.manifests,
            "hardware.json": seeds.hardware,
            "summary.json": seeds.summaries,
        }
        for name, source in contents.items():
            seed = chance.choice(source())
            data = mutate.json_input(chance, seed) if name == changed else None
            if data is None:
                data = json.dumps(seed).encode()
            (folder / name).write_bytes(data)
        (folder / "torch_profiler").mkdir()
        pages = chance.random() < _RENDERED

        def read() -> Summary | None:
            summary = load_summary(folder) if changed == "summary.json" else assemble_run(folder).summary
            check_summary(summary)
            if pages:
                console_summary(summary, write_documents(summary, folder)[0])
            return summary

        return read

    return make


def _catalogue(chance: random.Random, folder: Path) -> Callable[[], Summary | None]:
    path = folder / "catalogue.yaml"
    path.write_bytes(mutate.yaml_input(chance, chance.choice(seeds.catalogues())))

    def read() -> Summary | None:
        from llm_perf_opt.hardware.catalogue import load_catalogue

        catalogue = load_catalogue(path)
        catalogue.look_up("Lab GPU 80")
        for device in catalogue.devices:
            device.to_hardware()

    return read


def _probe(chance: random.Random, folder: Path) -> Callable[[], Summary | None]:
    path = folder / "kept.json"
    path.write_bytes(mutate.json_input(chance, chance.choice(seeds.probes())))

    def read() -> Summary | None:
        from llm_perf_opt.hardware.probe import read_kept

        kept = read_kept(path)
        if kept is not None and not all(0 < rate < 1e25 for rate in (*kept.flops_per_s.values(), 1.0)):
            raise Mismatch("an impossible rate was believed")

    return read


def _cache_entry(chance: random.Random, folder: Path) -> Callable[[], Summary | None]:
    from llm_perf_opt.captures.cache import cached
    from llm_perf_opt.captures.nsys.sqlite import read_nsys_sqlite

    home = folder.parent / "exports"
    if not (home / "made.sqlite").is_file():
        home.mkdir(exist_ok=True)
        seeds.exports(home)
    path, kept = home / "made.sqlite", folder / "cache"
    cached(path, read_nsys_sqlite, directory=kept, smallest=0)
    entry = next(kept.iterdir())
    entry.write_bytes(mutate.change_bytes(chance, entry.read_bytes()))

    def read() -> Summary | None:
        fresh = read_nsys_sqlite(path)
        found = cached(path, read_nsys_sqlite, directory=kept, smallest=0)
        same = found.names == fresh.names and found.source == fresh.source and found.devices == fresh.devices
        columns = [(found.ops, fresh.ops), (found.calls, fresh.calls), (found.ranges, fresh.ranges)]
        for one, other in columns:
            for name in one.__dataclass_fields__:
                same &= (getattr(one, name) == getattr(other, name)).all()
        if not same:
            raise Mismatch("a damaged entry was believed")

    return read


def _overrides(chance: random.Random, folder: Path) -> Callable[[], Summary | None]:
    given = []
    for item in chance.sample(seeds.OVERRIDES, chance.randint(1, 3)):
        key, _, value = item.partition("=")
        kind = chance.random()
        if kind < 0.7:
            value = str(chance.choice(mutate.NASTY)).replace("\udc80", "?")
        elif kind < 0.9:
            key = chance.choice(
                (key + ".x", "+" + key, "~" + key, "++" + key, key[:-1], key.upper(), key + "@a")
            )
        given.append(
            chance.choice((f"{key}={value}",) * 8 + (key, f"{key}=[{value},{value}]", f"{key}={{a:{value}}}"))
        )

    def read() -> Summary | None:
        from llm_perf_opt.config.compose import compose_config

        compose_config(given, cwd=folder)

    return read


READERS = (
    _file_reader("kineto", "trace.json", trace_facts, _of(seeds.traces, _trace)),
    Reader("nsys sqlite", _nsys_export),
    _file_reader("nsys csv", "summary.csv", nsys_facts, _of(seeds.kernel_tables, mutate.csv_input)),
    _file_reader("ncu csv", "page.csv", ncu_facts, _of(seeds.counter_pages, mutate.csv_input)),
    _file_reader("timings", "timings.json", timings_facts, _of(seeds.timings, mutate.json_input)),
    _file_reader("static", "static.json", static_facts, _of(seeds.statics, mutate.json_input)),
    Reader("summary", _run_directory("summary.json")),
    Reader("manifest", _run_directory("manifest.json")),
    Reader("hardware", _run_directory("hardware.json")),
    Reader("catalogue", _catalogue),
    Reader("probe cache", _probe),
    Reader("ingest cache", _cache_entry),
    Reader("overrides", _overrides),
)


def input_folder(root: Path, number: int) -> Path:
    """Return a fresh folder for one input."""
    folder = root / f"input-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
