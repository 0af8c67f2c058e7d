"""Readable short names for kernels; the rules are data (``kernel_names.yaml``). The full name is always kept."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

from llm_perf_opt.analysis.kernels.demangle import demangled
from llm_perf_opt.analysis.kernels.match import normalised
from llm_perf_opt.core.files import packaged_rows
from llm_perf_opt.summary import Kernel

_TYPES = (
    (
        "bf16",
        r"__nv_bfloat16\b|\bc10::BFloat16\b|cutlass::bfloat16_t|\bnv_bfloat16\b|\b__hip_bfloat16\b|std::bfloat16_t|\bbfloat16\b|\bbf16\b",
    ),
    ("f16", r"\b__half2?\b|\bc10::Half\b|cutlass::half_t|\b_Float16\b|\bhalf\b|\bfp16\b|\bf16\b"),
    ("fp8", r"__nv_fp8_e\dm\d|Float8_e\dm\d|float_e\dm\d_t|\be\dm\d\b"),
    ("f32", r"\bfloat\b|\bf32\b"),
    ("f64", r"\bdouble\b|\bf64\b"),
    ("i64", r"\blong\b|\bint64_t\b"),
    ("i8", r"\bint8_t\b|\bsigned char\b"),
    ("i32", r"\bint\b(?!\))|\bint32_t\b"),
    ("bool", r"\bbool\b(?!\))"),
)
_TYPE_PATTERN = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _TYPES))
_LAMBDA_ARGUMENT = re.compile(r"[\[{]lambda\((?P<type>[^()]*)\)")
_RETURN_TYPE = re.compile(r"^(?:void|std::enable_if<.*?>::type|__global__)\s+")
_LONGEST = 80


@lru_cache(maxsize=1)
def name_rules() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return the ordered rules that ship with the package."""
    return tuple(
        (re.compile(row["pattern"]), row["name"])
        for row in packaged_rows("llm_perf_opt.analysis.kernels", "kernel_names.yaml")
    )


@lru_cache(maxsize=65536)
def short_name(name: str) -> str:
    """Return a readable name, at most 80 characters."""
    name = demangled(name)
    for pattern, template in name_rules():
        match = pattern.search(name)
        if match:
            groups = {key: value or "" for key, value in match.groupdict().items()}
            text = template.format_map({**groups, "type": _element_type(name)})
            return _trimmed(" ".join(text.split()))
    return _trimmed(f"{bare_name(name)} {_element_type(name)}".strip() if "<" in name else bare_name(name))


def bare_name(name: str) -> str:
    """Drop return type, namespaces, template arguments and parameters: ``void a::b<int>(T1)`` → ``b``."""
    text = _RETURN_TYPE.sub("", name.strip())
    text = text.replace("<unnamed>", "").replace("(anonymous namespace)", "")
    outside: list[str] = []
    depth = 0
    for letter in text:
        if letter in "<([":
            if depth == 0 and letter == "(" and outside:
                break
            depth += 1
        elif letter in ">)]":
            depth = max(0, depth - 1)
        elif depth == 0:
            outside.append(letter)
    bare = "".join(outside).strip().rpartition("::")[2].strip()
    return bare.split()[-1] if bare.split() else name


def _element_type(name: str) -> str:
    """The first element type of the template arguments, else of the last lambda's argument."""
    lambdas = _LAMBDA_ARGUMENT.findall(name)
    for text in [one for one in reversed(lambdas) if one] if lambdas else []:
        found = _TYPE_PATTERN.search(text)
        if found and found.lastgroup != "i32":
            return str(found.lastgroup)
    arguments = name[name.find("<") :] if "<" in name else ""
    for found in _TYPE_PATTERN.finditer(arguments):
        if found.lastgroup not in ("i32", "bool"):
            return str(found.lastgroup)
    return ""


def _trimmed(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


# Distinct short names: two different kernels of one table never have the same short name.


_APART = " · "
"""Between a short name and the words that tell it from another kernel's."""
_MOST_WORDS = 4


def make_short_names_distinct(kernels: Sequence[Kernel]) -> None:
    """Make shared short names distinct by adding the words in which the full names differ."""
    by_short: dict[str, list[str]] = defaultdict(list)
    for kernel in kernels:
        by_short[kernel.short_name].append(kernel.name)
    endings = {
        short: distinguishing_parts(names)
        for short, names in by_short.items()
        if len(dict.fromkeys(names)) > 1
    }
    for kernel in kernels:
        ending = endings.get(kernel.short_name, {}).get(kernel.name)
        if ending:
            kernel.short_name = f"{kernel.short_name}{_APART}{ending}"


def without_ending(short_name: str) -> str:
    """Return a short name as it was before it was distinguished."""
    return short_name.partition(_APART)[0]


def distinguishing_parts(names: Iterable[str]) -> dict[str, str]:
    """Return, for each full name, the fewest of its own words by which no two of them are equal."""
    words = {name: normalised(name) for name in dict.fromkeys(names)}
    shared = Counter(next(iter(words.values()), ()))
    for each in words.values():
        shared &= Counter(each)
    own = {name: _beyond(each, shared) for name, each in words.items()}
    for most in range(1, _MOST_WORDS + 1):
        found = {name: " ".join(each[:most]) for name, each in own.items()}
        if len(set(found.values())) == len(found):
            # One of them may have no word of its own: it keeps the plain name.
            return found
    return {name: f"{' '.join(each[:1])} #{_mark(name)}".strip() for name, each in own.items()}


def _beyond(words: Sequence[str], shared: Counter[str]) -> list[str]:
    """Return the words a name has more often than all names do, in order; where in the name decides for equal ones."""
    left = Counter(shared)
    own = []
    for word in words:
        if left[word] > 0:
            left[word] -= 1
        else:
            own.append(word)
    return own


def _mark(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:4]
