"""Causes to plant: each a hook that a program calls between steps or in a layer."""

from __future__ import annotations

from collections.abc import Callable

from .machine import COPIES, MS, US, Rank
from .programs import Hook

DATA_LOADER = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"


def every(times: int, hook: Hook, first: int = 0) -> Hook:
    """Call ``hook`` at every ``times``-th place only."""

    def sometimes(rank: Rank, number: int) -> None:
        if number % times == first:
            hook(rank, number)

    return sometimes


def only_on(number: int, hook: Hook) -> Hook:
    """Call ``hook`` on one rank only."""

    def on_one(rank: Rank, place: int) -> None:
        if rank.number == number:
            hook(rank, place)

    return on_one


def all_of(*hooks: Hook) -> Hook:
    """Call all hooks, in order."""

    def each(rank: Rank, number: int) -> None:
        for hook in hooks:
            hook(rank, number)

    return each


def waits_for_workers(milliseconds: float) -> Hook:
    """The next batch is not ready: the main thread stands in the loader's queue."""

    def load(rank: Rank, number: int) -> None:
        with (
            rank.range(DATA_LOADER.format("MultiProcessing")),
            rank.frame("torch/utils/data/dataloader.py(701): __next__"),
            rank.frame("multiprocessing/connection.py(1136): wait"),
        ):
            rank.work(milliseconds * MS)
        rank.blame("input-pipeline")

    return load


def loads_in_the_main_thread(milliseconds: float) -> Hook:
    """No workers: decoding and collating run between the steps, with operators on the CPU."""

    def load(rank: Rank, number: int) -> None:
        with (
            rank.range(DATA_LOADER.format("SingleProcess")),
            rank.frame("torch/utils/data/dataloader.py(757): _next_data"),
        ):
            with rank.frame("PIL/Image.py(984): convert"):
                rank.work(milliseconds * MS * 0.55)
            with rank.op("aten::stack"), rank.op("aten::cat"):
                rank.work(milliseconds * MS * 0.25)
            with rank.op("aten::to"), rank.op("aten::_to_copy"), rank.op("aten::copy_"):
                rank.work(milliseconds * MS * 0.2)
        rank.blame("input-pipeline")

    return load


def loads_in_own_range(name: str, milliseconds: float) -> Hook:
    """A program's own range around reading or tokenising."""

    def load(rank: Rank, number: int) -> None:
        with rank.range(name), rank.frame(f"data/pipeline.py(33): {name}"):
            rank.work(milliseconds * MS)
        rank.blame("input-pipeline")

    return load


def python_between(milliseconds: float, *frames: str) -> Hook:
    """Python computes in no range while the queue runs dry."""
    names = frames or ("engine/scheduler.py(140): schedule", "engine/block_table.py(77): rebuild")

    def pause(rank: Rank, number: int) -> None:
        with rank.frame(names[0]), rank.frame(names[-1]):
            rank.work(milliseconds * MS)
        rank.blame("host-idle")

    return pause


def fetches_and_thinks(microseconds: float, call: str = "item") -> Hook:
    """The host fetches a value, then computes while the device it has just emptied has nothing to do."""

    def fetch(rank: Rank, number: int) -> None:
        if call == "item":
            rank.item()
        elif call == "nonzero":
            with rank.op("aten::nonzero"):
                rank.copy("DtoH", 4_096, pinned=False)
                rank.synchronise("cudaStreamSynchronize")
        else:
            rank.synchronise(call)
        with rank.frame("models/router.py(52): choose"):
            rank.work(microseconds * US)
        rank.blame("host-sync")

    return fetch


def allocates(milliseconds: float, *, frees: bool = True) -> Hook:
    """Memory is asked from the driver again and again; freeing waits for the device first."""

    def allocate(rank: Rank, number: int) -> None:
        with rank.op("aten::empty"):
            if frees:
                event = rank.call("cudaFree", 90 * US)
                event.end_ns = rank.now = max(rank.now, max(rank.ready.values()) + rank.jitter(35 * US))
            rank.call("cudaMalloc", milliseconds * MS)
        rank.blame("allocation")

    return allocate


def copies_in(megabytes: float, *, pinned: bool = True) -> Hook:
    """Input or weights come over the bus, on the stream that computes."""

    def copy(rank: Rank, number: int) -> None:
        with rank.op("aten::to"), rank.op("aten::_to_copy"), rank.op("aten::copy_"):
            event = rank.copy("HtoD", int(megabytes * 1e6), pinned=pinned)
            rank.lose("copies", event.end_ns - event.start_ns)

    return copy


def copies_beside(megabytes: float) -> Hook:
    """The same copy on a stream of its own: healthy."""

    def copy(rank: Rank, number: int) -> None:
        with rank.op("aten::to"), rank.op("aten::_to_copy"), rank.op("aten::copy_"):
            rank.copy("HtoD", int(megabytes * 1e6), pinned=True, stream=COPIES)

    return copy


SlowRank = Callable[[Rank], None]


def held_by_earlier_work(milliseconds: float) -> SlowRank:
    """At the start the stream still runs what was launched before the capture."""

    def hold(rank: Rank) -> None:
        rank.copy("HtoD", 65_536, pinned=True, stream=COPIES)
        rank.ready[7] = rank.now + int(milliseconds * MS)

    return hold
