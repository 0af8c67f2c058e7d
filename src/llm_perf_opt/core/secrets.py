"""Detection and masking of secrets.

Captures store environments, and results store command lines and messages. Three things give a secret away: its
name (``API_KEY``, ``--password``, ``token=``), its own shape (``hf_…``, ``ghp_…``, a private key), and its place
(password and signature of a URL, ``curl -u user:password``, a header of a request). Masking keeps everything else, so
that a masked command can still be read and repaired.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"
"""What stands for a secret."""
_ALWAYS_SECRET = frozenset(
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
"""Endings of a word that make any name the name of a secret (``PGPASSWORD``)."""
_SOMETIMES_SECRET = frozenset(
    {"token", "key", "keys", "auth", "authorization", "bearer", "pat", "pwd", "pass", "cookie"}
)
"""Words that name a secret or something else (``eos_token``); the word before and the place in the name decide."""
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
_NAMES_OF_VARIABLES = frozenset({"api_key_env"})
"""Keys that hold the name of the variable with the secret: a masked name could not be repeated."""
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
    | (?<![A-Za-z-])Signature=[A-Za-z0-9%+/_-]{16,}
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----(?:[\s\S]*?-----END\ [A-Z ]*PRIVATE\ KEY-----|[\s\S]*)
    """,
    re.VERBOSE,
)
_URL_PASSWORD = re.compile(
    r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@'\"]{0,256}):(?P<secret>[^\s/@'\"]{1,512})@"
)
_URL_USER = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)(?P<secret>[A-Za-z0-9_-]{20,512})@")
"""A token in place of a user's name."""
_URL_PARAMETER = re.compile(
    r"""
    (?P<name>[?&;](?:[A-Za-z0-9_.%-]{0,40}[-_.])?(?:signature|sig|credential|token|secret|password|passwd|pwd|policy|auth
        |key|apikey|accesskeyid|awsaccesskeyid|key-pair-id|code)\\?=)
    (?P<secret>[^&;\s#"'\])},]{1,4096})
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Parameters of a query that are as good as a password: presigned URLs of object stores, keys of services."""
_LOGIN = re.compile(
    r"""
    (?P<flag>(?<![A-Za-z0-9_-])(?:-u|-U|--user|--proxy-user)(?:["']?\s*[=,]\s*["']?|["']?\s+["']?))
    (?P<user>[^\s:,"'\]\[]{1,256}):(?P<secret>[^\s,"'\]\[]{1,1024})
    """,
    re.VERBOSE,
)
_CURL_LOGIN = re.compile(
    r"""(?P<flag>(?<=[\s,"'\[])-[uU])(?P<user>[^\s:,"'\]\[=-][^\s:,"'\]\[]{0,255}):(?P<secret>[^\s,"'\]\[]{1,1024})"""
)
"""Written in one word, as curl allows."""
_CURL_COOKIE = re.compile(
    r"""(?P<name>(?<=[\s,"'\[])(?:-b|--cookie)["']?[\s,=]+["']?[^\s=,"']{1,256}=)[^\s,"'\]]{1,4096}"""
)
_LOGIN_FLAGS = frozenset({"-u", "-U", "--user", "--proxy-user"})
_HEADER_FLAGS = frozenset({"-H", "--header", "--proxy-header"})
_HEADER = re.compile(
    r"""
    (?P<flag>(?<![A-Za-z0-9_-])(?:-H|--header|--proxy-header)["']?\s*[=,]?\s*)
    (?P<quote>["']?)(?P<name>[A-Za-z][A-Za-z0-9_-]{0,80})(?P<colon>\s*:\s*)(?P<value>[^\s"'])
    """,
    re.VERBOSE,
)
_ORDINARY_HEADERS = frozenset(
    [
        "accept",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "expect",
        "host",
        "origin",
        "pragma",
        "range",
        "referer",
        "user-agent",
    ]
)
"""Headers whose value may be shown; any other header of a request may be a key."""
_CREDENTIAL_LINE = re.compile(
    r"""(?P<name>\b(?:(?:Proxy-)?Authorization|(?:Set-)?Cookie)["']?\s*:\s*["']?)(?P<value>[^\s"'\\<$*][^\r\n"'\]}]{0,4096})""",
    re.IGNORECASE,
)
_SCHEME = r"(?:(?:Bearer|Basic|Token|ApiKey|Api-Key|Key|Bot|SSWS|NTLM|Negotiate)\s+)?"
_HEADER_WORD = re.compile(rf"""{_SCHEME}[^\s"'\]]+""")
_END_OF_ITEM = re.compile(r"""[,\]\n"']""")
_NAMED = re.compile(
    rf"""
    (?P<name>(?<![A-Za-z0-9_.-])-{{0,2}}[A-Za-z][A-Za-z0-9_.-]{{0,80}})
    (?P<between>["']?\s*[=:,]\s*["']?|\s+["']?)
    (?P<value>{_SCHEME}[^\s,;&"'\]\[(){{}}])
    """,
    re.VERBOSE,
)
_VALUE = re.compile(rf"""{_SCHEME}[^\s,;&"'\]\[(){{}}]+""")
_PROSE = re.compile(
    r"(?i)(?:left out|not (?:set|given|found|shown|known|stored|needed)|is (?:missing|wrong|refused|not)|was (?:refused|not))\b"
)
"""What our own sentences, and those of others, say after the name of a secret."""
_ASSIGNMENT = re.compile(r"[-+~]{0,2}(?P<name>[A-Za-z][A-Za-z0-9_.-]{0,200})=(?P<value>.+)", re.DOTALL)
_HINT = re.compile(r"(?i)token|secret|pass|pwd|credential|key|auth|bearer|pat|cookie")
"""In every name of a secret; most texts have none of them."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PLAIN = re.compile(r"(?i)null|none|true|false|[-+]?[\d.]+(?:e[-+]?\d+)?|<[^<>]*>|\$\{.*|\?\?\?|\*+|str|int")
"""Values that are no secret whatever they are called: nothing, a number, ``<eos>``, a reference."""


def is_secret_name(name: str) -> bool:
    """Return whether a variable, option or key of this name holds a secret."""
    name = name.rpartition(".")[2]
    if not _HINT.search(name) or name.strip("-+").replace("-", "_") in _NAMES_OF_VARIABLES:
        return False
    words = [word.lower() for word in _WORDS.findall(name)]
    if any(word.endswith(strong) for word in words for strong in _ALWAYS_SECRET):
        return True
    for before, word in zip(["", *words], words, strict=False):
        if word not in _SOMETIMES_SECRET:
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
    """Return whether an environment variable must not be passed on by default, by name or value."""
    words = {word.lower() for word in _WORDS.findall(name)}
    return is_secret_name(name) or bool(words & {"token", "key", "keys", "jwt"}) or has_secret(value)


def has_secret(text: str) -> bool:
    """Return whether a text holds something of the shape of a secret, or a URL with a password."""
    return bool(_SHAPES.search(text) or _URL_PASSWORD.search(text) or _URL_PARAMETER.search(text))


def mask_text(text: str) -> str:
    """Return a text without its secrets: known shapes, passwords of URLs, values after names of secrets."""
    text = _SHAPES.sub(MASK, text)
    if "://" in text:
        text = _URL_PASSWORD.sub(lambda found: f"{found['scheme']}:{MASK}@", text)
        text = _URL_USER.sub(lambda found: f"{found['scheme']}{MASK}@", text)
        text = _URL_PARAMETER.sub(_without_secret, text)
    if "-" in text:
        text = _LOGIN.sub(_without_password, text)
        if "curl" in text:
            text = _CURL_LOGIN.sub(_without_password, text)
            text = _CURL_COOKIE.sub(_without_secret, text)
        text = _mask_headers(text)
    text = _CREDENTIAL_LINE.sub(_without_credentials, text)
    return _mask_named(text)


def secret_texts(tree: Any) -> dict[str, str]:
    """Return every string of a tree that holds a secret, with what is to be shown instead.

    A program that prints the tree in a layout of its own can be masked with it.
    """
    found: dict[str, str] = {}

    def compare(shown: Any, masked: Any) -> None:
        if isinstance(shown, Mapping):
            for key in shown:
                compare(shown[key], masked[key])
        elif isinstance(shown, list | tuple):
            for one, other in zip(shown, masked, strict=True):
                compare(one, other)
        elif isinstance(shown, str) and shown != masked:
            found[shown] = masked

    compare(tree, mask_tree(tree))
    return found


def mask_layout(text: str, secrets: Mapping[str, str]) -> str:
    """Mask a text in which a program printed a tree in a layout of its own, such as YAML; ``secrets`` as of :func:`secret_texts`."""
    for secret, shown in sorted(secrets.items(), key=lambda item: -len(item[0])):
        # A long string may be broken between its words, and a quote in it doubled.
        pattern = r"\s+".join(re.escape(word).replace("'", "''?") for word in secret.split())
        if pattern:
            text = re.sub(rf"(?<!\w){pattern}(?!\w)", lambda _, shown=shown: shown, text)  # type: ignore[misc]
    return mask_text(text)


def _without_secret(found: re.Match[str]) -> str:
    return f"{found['name']}{MASK}"


def _without_password(found: re.Match[str]) -> str:
    """``user:group`` of two numbers is not a login."""
    if found["user"].isdigit() and found["secret"].isdigit():
        return found[0]
    return f"{found['flag']}{found['user']}:{MASK}"


def _without_credentials(found: re.Match[str]) -> str:
    value = found["value"]
    cookie = "cookie" in found["name"].lower()
    if _PLAIN.fullmatch(value.strip()) or _PROSE.match(value) or (cookie and "=" not in value):
        return found[0]
    return f"{found['name']}{MASK}"


def _mask_headers(text: str) -> str:
    """Mask the values of headers after ``-H`` and ``--header``, to the end of their argument."""
    parts: list[str] = []
    at = 0
    while found := _HEADER.search(text, at):
        begin = found.start("value")
        if found["name"].lower() in _ORDINARY_HEADERS:
            parts.append(text[at:begin])
            at = begin
            continue
        if quote := found["quote"]:
            end = text.find(quote, begin)
        elif found["flag"].rstrip().endswith(","):
            rest = _END_OF_ITEM.search(text, begin)
            end = rest.start() if rest else -1
        else:
            rest = _HEADER_WORD.match(text, begin)
            end = rest.end() if rest else -1
        end = len(text) if end < 0 else end
        parts += [text[at:begin], text[begin:end] if _PLAIN.fullmatch(text[begin:end]) else MASK]
        at = end
    return "".join([*parts, text[at:]])


def mask_arguments(argv: Sequence[str]) -> list[str]:
    """Return an argument list without its secrets; ``--api-key X`` and ``--api-key=X`` lose X, whatever it is."""
    masked: list[str] = []
    after_name = False
    before = ""
    arguments = [str(word) for word in argv]
    curl = next((word for word in arguments if word.rpartition("/")[2] == "curl"), "")
    for word in arguments:
        assigned = _ASSIGNMENT.fullmatch(word)
        if before in _HEADER_FLAGS or before in _LOGIN_FLAGS or (curl and before in ("-b", "--cookie")):
            masked.append(_mask_after(before, word, curl))
        elif after_name and not word.startswith("--") and not _PLAIN.fullmatch(word):
            masked.append(MASK)
        elif assigned and is_secret_name(assigned["name"]) and not _PLAIN.fullmatch(assigned["value"]):
            masked.append(word[: assigned.start("value")] + MASK)
        elif curl and word.startswith(("-u", "-U")):
            masked.append(mask_text(f"curl {word}").removeprefix("curl "))
        else:
            masked.append(mask_text(word))
        before = word
        after_name = word.startswith("-") and "=" not in word and is_secret_name(word)
    return masked


def _mask_after(option: str, word: str, curl: str) -> str:
    """Mask an argument together with its option; it may hold spaces and quotes, which end nothing here."""
    begin = f"{curl} {option} "
    plain = word.replace('"', "").replace("'", "")
    quoted = f"{begin}'{plain}'"
    found = mask_text(quoted)
    return word if found == quoted else found.removeprefix(begin).strip("'")


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
    if _PROSE.match(text, begin):
        return True
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
