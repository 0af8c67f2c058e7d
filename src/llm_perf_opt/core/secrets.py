"""What looks like a secret, and the same text without it.

Captures store environments, and results store command lines and messages. Three things give a secret away: its
name (``API_KEY``, ``--password``, ``token=``), its own shape (``hf_…``, ``ghp_…``, a private key), and its place
(the password of a URL). Masking keeps everything else, so that a masked command can still be read and repaired.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"
"""What stands for a secret."""

_STRONG = frozenset(
    [
        "secret",
        "secrets",
        "password",
        "passwords",
        "passwd",
        "passphrase",
        "credential",
        "credentials",
        "apikey",
        "apikeys",
    ]
)
_WEAK = frozenset({"token", "key", "keys", "auth", "authorization", "bearer", "pat", "pwd", "pass", "cookie"})
"""Words that name a secret unless the words before them say what else they are."""
_KEY_OF = frozenset(
    [
        "api",
        "access",
        "private",
        "secret",
        "secretaccess",
        "auth",
        "account",
        "signing",
        "encryption",
        "license",
        "ssh",
        "master",
        "service",
        "deploy",
    ]
)
"""``…_key`` is a secret after one of these, or as the only word of a variable's name."""
_ORDINARY_TOKENS = frozenset(
    [
        "pad",
        "eos",
        "bos",
        "unk",
        "sep",
        "cls",
        "mask",
        "image",
        "video",
        "audio",
        "special",
        "start",
        "end",
        "stop",
        "first",
        "last",
        "next",
        "new",
        "per",
        "image_start",
        "row",
        "decoder",
        "forced",
        "prefix",
        "suffix",
        "fim",
        "view",
        "newline",
        "max",
        "min",
        "num",
        "text",
        "vision",
        "boi",
        "eoi",
        "time",
        "ms",
        "s",
        "us",
        "latency",
        "ttft",
        "tpot",
    ]
)
"""``eos_token`` and ``ms_per_token`` are words of models and of measurements."""

_SHAPES = re.compile(
    r"""
      \bhf_[A-Za-z0-9]{8,}
    | \b(?:sk|rk|pk)[-_](?=[A-Za-z0-9_-]{0,200}\d)[A-Za-z0-9_-]{16,}
    | \bgh[pousr]_[A-Za-z0-9]{16,}
    | \bgithub_pat_[A-Za-z0-9_]{16,}
    | \bglpat-[A-Za-z0-9_-]{16,}
    | \bxox[abposr]-[A-Za-z0-9-]{10,}
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
    | \bAIza[A-Za-z0-9_-]{30,}
    | \bnvapi-[A-Za-z0-9_-]{16,}
    | \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----(?:[\s\S]*?-----END\ [A-Z ]*PRIVATE\ KEY-----|[\s\S]*)
    """,
    re.VERBOSE,
)
_URL_PASSWORD = re.compile(
    r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@'\"]{0,256}):(?P<secret>[^\s/@'\"]{1,512})@"
)
_NAMED = re.compile(
    r"""
    (?P<name>(?<![A-Za-z0-9_.-])-{0,2}[A-Za-z][A-Za-z0-9_.-]{0,80})
    (?P<between>["']?\s*[=:,]\s*["']?|\s+["']?)
    (?P<value>(?:(?:Bearer|Basic)\s+)?[^\s,;&"'\]\[(){}])
    """,
    re.VERBOSE,
)
_VALUE = re.compile(r"""(?:(?:Bearer|Basic)\s+)?[^\s,;&"'\]\[(){}]+""")
_ASSIGNMENT = re.compile(r"[-+~]{0,2}(?P<name>[A-Za-z][A-Za-z0-9_.-]{0,200})=(?P<value>.+)", re.DOTALL)
_HINT = re.compile(r"(?i)token|secret|pass|pwd|credential|key|auth|bearer|pat|cookie")
"""In every name of a secret; most texts have none of them."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PLAIN = re.compile(r"(?i)null|none|true|false|[-+]?[\d.]+(?:e[-+]?\d+)?|<[^<>]*>|\$\{.*|\?\?\?|\*+|str|int")
"""Values that are no secret whatever they are called: nothing, a number, ``<eos>``, a reference."""


def is_secret_name(name: str) -> bool:
    """Tell whether a variable, option or key of this name holds a secret."""
    name = name.rpartition(".")[2]
    if not _HINT.search(name):
        return False
    words = [word.lower() for word in _WORDS.findall(name)]
    if any(word.endswith(strong) for word in words for strong in _STRONG):
        return True
    for before, word in zip(["", *words], words, strict=False):
        if word not in _WEAK:
            continue
        if word in ("key", "keys"):
            if before in _KEY_OF:
                return True
        elif word == "token":
            # ``token_ids`` and ``token_count`` are counted with; a secret token is the last word of its name.
            if words[-1] in ("token", "value", "file") and before not in _ORDINARY_TOKENS:
                return True
        elif words[-1] == word and (word in ("authorization", "bearer", "pat") or before):
            return True
    return False


def is_secret_variable(name: str, value: str) -> bool:
    """Tell whether an environment variable must not be handed on unasked: by its name, or by its value."""
    words = {word.lower() for word in _WORDS.findall(name)}
    return is_secret_name(name) or bool(words & {"token", "key", "keys"}) or has_secret(value)


def has_secret(text: str) -> bool:
    """Tell whether a text holds something of the shape of a secret, or a URL with a password."""
    return bool(_SHAPES.search(text) or _URL_PASSWORD.search(text))


def mask_text(text: str) -> str:
    """Return a text without its secrets: known shapes, passwords of URLs, values after names of secrets."""
    text = _SHAPES.sub(MASK, text)
    text = _URL_PASSWORD.sub(lambda found: f"{found['scheme']}:{MASK}@", text)
    return _mask_named(text)


def mask_arguments(argv: Sequence[str]) -> list[str]:
    """Return an argument list without its secrets; ``--api-key X`` and ``--api-key=X`` lose X, whatever it is."""
    masked: list[str] = []
    after_name = False
    for word in map(str, argv):
        assigned = _ASSIGNMENT.fullmatch(word)
        if after_name and not word.startswith("--") and not _PLAIN.fullmatch(word):
            masked.append(MASK)
        elif assigned and is_secret_name(assigned["name"]) and not _PLAIN.fullmatch(assigned["value"]):
            masked.append(word[: assigned.start("value")] + MASK)
        else:
            masked.append(mask_text(word))
        after_name = word.startswith("-") and "=" not in word and is_secret_name(word)
    return masked


def mask_tree(value: Any, name: str = "") -> Any:
    """Return mappings, lists and strings without their secrets; other values as they are."""
    if isinstance(value, Mapping):
        return {key: mask_tree(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, str) for item in value):
            return mask_arguments([_mask_value(item, name) for item in value])
        return [mask_tree(item, name) for item in value]
    return _mask_value(value, name) if isinstance(value, str) else value


def _mask_value(value: str, name: str) -> str:
    if name and is_secret_name(name) and value and not _PLAIN.fullmatch(value):
        return MASK
    return mask_text(value)


def _mask_named(text: str) -> str:
    """Mask values that follow a name; one pass, resumed after the name where it is not the name of a secret."""
    if not _HINT.search(text):
        return text
    parts: list[str] = []
    at = 0
    while found := _NAMED.search(text, at):
        begin = found.start("value")
        if _names_a_secret(found["name"], found["between"], text[begin]) and not _is_plain(text, begin):
            parts += [text[at:begin], MASK]
            at = _end_of_value(text, found.start("name"), begin)
        else:
            parts.append(text[at : found.end("name")])
            at = found.end("name")
    return "".join([*parts, text[at:]])


def _names_a_secret(name: str, between: str, first: str) -> bool:
    """Prose ("the token was refused") is kept: without a sign between them, only options have values."""
    option = name.startswith("-")
    signed = "=" in between or ":" in between
    return (signed or (option and first != "-")) and is_secret_name(name)


def _is_plain(text: str, begin: int) -> bool:
    found = _VALUE.match(text, begin)
    return found is not None and len(found[0]) < 100 and _PLAIN.fullmatch(found[0]) is not None


def _end_of_value(text: str, name: int, begin: int) -> int:
    """A quoted value, or one in a quoted argument, ends at the closing quote; others at the next separator."""
    for place in (begin - 1, name - 1):
        if place >= 0 and text[place] in "'\"":
            closing = text.find(text[place], begin)
            if closing >= 0:
                return closing
    found = _VALUE.match(text, begin)
    return found.end() if found else begin
