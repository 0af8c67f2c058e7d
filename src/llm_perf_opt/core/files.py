"""Atomic file writes, bounded reads and packaged data."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import IO, Any

from llm_perf_opt.core.errors import ConfigError, InputError, ToolError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}
_BAD_NAME = {errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ELOOP}
RUN_DIRECTORY = "another run directory: artifacts.runs_dir=/some/dir"
"""Where else a run can write."""
_ELSEWHERE = contextvars.ContextVar[str | None]("elsewhere", default=None)


@contextlib.contextmanager
def hint_other_directory(where: str) -> Iterator[None]:
    """Set the hint on how to choose another output directory (``another directory: --out DIR``)."""
    before = _ELSEWHERE.set(where)
    try:
        yield
    finally:
        _ELSEWHERE.reset(before)


def other_directory(default: str = "another directory") -> str:
    """Return the hint on how to choose another output directory: ``another directory: --out DIR``."""
    return _ELSEWHERE.get() or default


@contextlib.contextmanager
def explain_os_errors(path: Path, *, elsewhere: str | None = None) -> Iterator[None]:
    """Turn a full disk or a read-only directory into a message with the cause and the fix.

    ``elsewhere`` is the hint for another directory, unless the command sets one (:func:`hint_other_directory`).
    """
    try:
        yield
    except OSError as error:
        where = other_directory(elsewhere or "another directory")
        if error.errno in _NO_SPACE:
            raise ToolError(
                f"no space left to write {path}", hint=f"free some space or choose {where}", path=str(path)
            ) from error
        if error.errno in _NO_PERMISSION:
            raise ToolError(
                f"no permission to write {path}",
                hint=f"make it writable or choose {where}",
                path=str(path),
            ) from error
        if error.errno in _IN_THE_WAY:
            raise ToolError(
                f"cannot create {path}: a file is where a directory should be",
                hint=f"move the file or choose {where}",
                path=str(path),
            ) from error
        if error.errno == errno.ELOOP:
            raise ToolError(
                f"{path} is a symbolic link, and is not written through",
                hint=f"remove the link, or choose {where}",
                path=str(path),
            ) from error
        if error.errno in _BAD_NAME:
            raise ToolError(
                f"cannot create {path}: {error.strerror}", hint="choose another, shorter name", path=str(path)
            ) from error
        raise


def is_there(path: Path) -> bool:
    """Return whether a path exists; one that cannot (a name of 300 characters) does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_own_file(path: Path) -> bool:
    """Return whether a file is ours alone to write: regular, no link, of this user, not writable by everybody."""
    try:
        found = path.lstat()
    except OSError:
        return False
    owner = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISREG(found.st_mode) and owner and not found.st_mode & stat.S_IWOTH


def refuse_link(path: Path) -> None:
    """Reject writing to a symbolic link, which may be an attack. Whole files replace links."""
    if path.is_symlink():
        raise ToolError(
            f"{path} is a symbolic link, and is not written through",
            hint="remove the link, or choose another directory",
            path=str(path),
        )


def open_new(path: Path) -> IO[bytes]:
    """Open a new file for writing, unbuffered, replacing an existing one, never through a link, symbolic or hard.

    For files that grow while they are read, which cannot be moved into place whole.
    """
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb", buffering=0)


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path``; move it into place when the block succeeds, else remove it."""
    path = Path(path)
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # The suffix is kept last so that writers which look at it (gzip, Parquet) see the real one.
        temporary = path.with_name(f".{path.stem[:32]}.{secrets.token_hex(4)}.partial{path.suffix}")
        # Created normally, so that the user's umask applies to the result.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            yield temporary
            temporary.replace(path)
        except BaseException:  # also at a signal no temporary file is left
            temporary.unlink(missing_ok=True)
            raise


def atomic_write_bytes(path: Path, data: bytes) -> Path:
    """Write ``data`` to ``path`` so that a reader sees the old file or the new one, never a part."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def atomic_write_text(path: Path, text: str) -> Path:
    """Write text as UTF-8; lone surrogates (undecodable file names) survive as escapes."""
    return atomic_write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


def atomic_write_json(path: Path, value: Any) -> Path:
    """Write strict JSON (no NaN), indented, keys in the order given."""
    import msgspec

    compact = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        # Python's own writer leaves C as soon as it indents, and then takes four times as long.
        text = msgspec.json.format(compact.encode("utf-8", errors="backslashreplace"), indent=2)
    except msgspec.DecodeError:
        # An undecodable file name has become half a surrogate pair, which msgspec does not take for JSON.
        return atomic_write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    return atomic_write_bytes(path, text + b"\n")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


# Read limits: documents and tables up to a size, compressed text up to a factor. Both are configurable.
#
# A few megabytes of gzip unpack to gigabytes, and a link to ``/dev/zero`` never ends.


DOCUMENT_VARIABLE = "LLM_PERF_OPT_MAX_DOCUMENT_BYTES"
"""Environment variable: the largest JSON, YAML or CSV file that is read."""
UNPACK_VARIABLE = "LLM_PERF_OPT_MAX_UNPACK_FACTOR"
"""Environment variable: how many times its size a packed trace may unpack to."""
_DOCUMENT_BYTES = 512 << 20
_UNPACK_FACTOR = 100


def most_document_bytes() -> int:
    """Return the largest document that is read."""
    return _from_environment(DOCUMENT_VARIABLE, _DOCUMENT_BYTES)


def most_unpacked() -> int:
    """Return how many times its size packed text may be."""
    return _from_environment(UNPACK_VARIABLE, _UNPACK_FACTOR)


def require_regular(path: Path) -> None:
    """Reject anything that is not a regular file (a pipe, a device). A missing file is reported by the caller."""
    if path.exists() and not path.is_dir() and not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{path} is not a regular file", hint="give a file", path=str(path))


def read_input(path: Path) -> bytes:
    """Return the content of a file that the user named; one that cannot be read is an :class:`InputError`."""
    try:
        return read_document(path)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", hint="check the path and its permissions", path=str(path)
        ) from error


def read_document(path: Path) -> bytes:
    """Return a file's content; a file that is too large or not regular is an :class:`InputError`; other faults stay OSError."""
    require_regular(path)
    most = most_document_bytes()
    with path.open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise InputError(
            f"{path} is larger than {most} bytes",
            hint=f"if that is right, set {DOCUMENT_VARIABLE} to more",
            path=str(path),
        )
    return content


def _from_environment(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) > 0):
        raise ConfigError(
            f"{variable}={text} is not a positive whole number", hint=f"the default is {default}"
        )
    return int(text)


# YAML of others. The C loader recurses natively (200,000 brackets end the process), and both loaders follow aliases and merge
# keys however much they stand for. The events of a document cost neither, so they are checked first.


_MOST_YAML_DEPTH = 100
_MOST_YAML_NODES = 1_000_000
"""Of a document with its aliases written out."""
_MOST_YAML_NUMBER = 1000
"""Characters of a plain scalar that begins like a number."""


def parse_yaml(text: bytes | str) -> Any:
    """Return the contents of a YAML document; :class:`ValueError` if it is invalid or expands without bound."""
    import yaml

    # Both loaders are the safe ones; the C one is ten times faster, where it was built.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_yaml_events(yaml, yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except (RecursionError, OverflowError) as error:
        raise ValueError(f"its content cannot be represented ({type(error).__name__})") from error


def _check_yaml_events(yaml: Any, events: Iterator[Any]) -> None:
    """Reject deep nesting, excessive aliases and invalid text."""
    sizes = [0]
    """Nodes of every open collection, written out."""
    names: list[str | None] = []
    anchors: dict[str | None, int] = {}
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise ValueError(f"the alias *{event.anchor} refers to itself or to nothing")
            sizes[-1] += anchors[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            names.append(event.anchor)
            if len(names) > _MOST_YAML_DEPTH:
                raise ValueError(f"it is nested more than {_MOST_YAML_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            size, name = sizes.pop(), names.pop()
            sizes[-1] += size
            anchors[name] = size
        elif isinstance(event, yaml.ScalarEvent):
            sizes[-1] += 1
            anchors[event.anchor] = 1  # None: without a name
            _check_yaml_scalar(event.value, plain=event.implicit[0])
        if sizes[-1] > _MOST_YAML_NODES:
            raise ValueError(f"its aliases expand to more than {_MOST_YAML_NODES} values")


def _check_yaml_scalar(value: str, *, plain: bool) -> None:
    if plain and len(value) > _MOST_YAML_NUMBER and value[0] in "+-.0123456789":
        raise ValueError(f"a number has more than {_MOST_YAML_NUMBER} characters")
    if not value.isascii():
        value.encode("utf-8")  # a lone surrogate is a ValueError


# Data that ships with the package as YAML: ordered rules, and the catalogue of devices.


def packaged_yaml(package: str, file_name: str) -> Any:
    """Return the contents of a YAML file of a package."""
    import yaml  # slow to import, and most callers never get here

    text = resources.files(package).joinpath(file_name).read_text("utf-8")
    # Both loaders are the safe ones; the C one is ten times faster, where it was built.
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def packaged_rows(package: str, file_name: str) -> list[dict[str, Any]]:
    """Return the rows of one rule file, in order."""
    rows: list[dict[str, Any]] = packaged_yaml(package, file_name)
    return rows
