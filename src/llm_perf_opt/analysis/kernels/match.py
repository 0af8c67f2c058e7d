"""Match ncu kernels to nsys kernels. The tools print the same name differently.

nsys: ``void cutlass::Kernel2<…>(T1::Params)``, ``<(int)128, (bool)0>``; ncu drops namespaces and casts, and
loses a bracket on the way (``void unnamed>::CatArrayBatchedCopy<unnamed>::OpaqueType<2>…``). What survives in
both is the sequence of unqualified words and numbers.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from llm_perf_opt.analysis.kernels.demangle import demangled
from llm_perf_opt.captures.ncu.launches import NcuLaunch, function_name

_CAST = re.compile(r"\((?:[A-Za-z_][\w:]*(?:<[^()<>]*>)?(?: \w+)*)\)(?=-?\d)")
_QUALIFIER = re.compile(r"\b[A-Za-z_]\w*::")
_NOISE = re.compile(r"\bunnamed\b|\banonymous namespace\b|\bconst\b")
_WORD = re.compile(r"-?\b\d\w*(?:\.\d+)?|\b[A-Za-z_]\w*|!")


class Profiled(Protocol):
    """The fields of an ncu kernel that matching needs."""

    @property
    def kernel(self) -> str:
        """Its name."""

    @property
    def nsys_name_md5(self) -> str | None:
        """MD5 of the nsys name, if the capture's folder contains it."""


@functools.lru_cache(maxsize=8192)
def normalised(name: str) -> tuple[str, ...]:
    """Return the words of a kernel name that are equal in nsys and ncu, in order."""
    text = _CAST.sub("", demangled(name))
    text = text.replace("(anonymous namespace)::", "").replace("<unnamed>::", "<").replace("unnamed>::", "")
    text = _QUALIFIER.sub("", text)
    return tuple(_WORD.findall(_NOISE.sub(" ", text)))


def name_md5(name: str) -> str:
    """Return the MD5 of a kernel name, as folder names of per-kernel captures carry it."""
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()


def match_kernels(profiled: Iterable[Profiled], nsys_names: Sequence[str]) -> dict[str, str]:
    """Map each ncu kernel name to the nsys name it belongs to; names without a sure partner are left out.

    In order: the MD5 of the nsys name, the same text, the same words, and the bare function name where exactly
    one nsys kernel has it (ncu prints only that with ``--print-kernel-base function``).
    """
    by_md5 = {name_md5(name): name for name in nsys_names}
    by_normalised: dict[tuple[str, ...], list[str]] = defaultdict(list)
    by_function: dict[str, list[str]] = defaultdict(list)
    exact = set(nsys_names)
    for name in dict.fromkeys(nsys_names):
        by_normalised[normalised(name)].append(name)
        by_function[function_name(name)].append(name)
    found: dict[str, str] = {}
    for kernel in profiled:
        if kernel.nsys_name_md5 and kernel.nsys_name_md5 in by_md5:
            found[kernel.kernel] = by_md5[kernel.nsys_name_md5]
        elif kernel.kernel in exact:
            found[kernel.kernel] = kernel.kernel
        else:
            same = by_normalised.get(normalised(kernel.kernel), [])
            if not same and _is_bare(kernel.kernel):
                same = by_function.get(kernel.kernel, [])
            if len(same) == 1:
                found[kernel.kernel] = same[0]
    return found


def with_distinct_names(launches: Sequence[NcuLaunch], nsys_names: Sequence[str]) -> list[NcuLaunch]:
    """Return the launches, under their nsys names where ncu prints the same name for several nsys kernels.

    ncu leaves out namespaces, and with ``--print-kernel-base function`` everything but the function. Counters are
    grouped by name, so without this the counters of different kernels would be added up; the MD5 in the folder name
    identifies each.
    """
    by_md5 = {name_md5(name): name for name in nsys_names}
    kernels: dict[str, set[str]] = defaultdict(set)
    for launch in launches:
        if launch.nsys_name_md5 in by_md5:
            kernels[launch.kernel].add(launch.nsys_name_md5)
    return [
        replace(launch, kernel=by_md5[launch.nsys_name_md5])
        if launch.nsys_name_md5 in by_md5 and len(kernels[launch.kernel]) > 1
        else launch
        for launch in launches
    ]


def _is_bare(name: str) -> bool:
    """Return whether a name is an identifier alone, without namespace, arguments or return type."""
    return re.fullmatch(r"\w+", name) is not None
