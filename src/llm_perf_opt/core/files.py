"""Files that are either there whole or not at all."""

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
from pathlib import Path
from typing import IO, Any

from llm_perf_opt.core.errors import ToolError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}
_BAD_NAME = {errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ELOOP}


RUN_DIRECTORY = "another run directory: artifacts.runs_dir=/some/dir"
"""Where else a run can write."""

_ELSEWHERE = contextvars.ContextVar("elsewhere", default="another directory")


@contextlib.contextmanager
def writing_elsewhere(where: str) -> Iterator[None]:
    """Say how a user of this command chooses where it writes (``another directory: --out DIR``), for all that it writes."""
    before = _ELSEWHERE.set(where)
    try:
        yield
    finally:
        _ELSEWHERE.reset(before)


@contextlib.contextmanager
def explain_os_errors(path: Path, *, elsewhere: str | None = None) -> Iterator[None]:
    """Turn a full disk or a read-only directory into a message that says which and what to do.

    ``elsewhere`` says how to choose another place; by default what the command said (:func:`writing_elsewhere`).
    """
    try:
        yield
    except OSError as error:
        where = elsewhere or _ELSEWHERE.get()
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
        if error.errno in _BAD_NAME:
            raise ToolError(
                f"cannot create {path}: {error.strerror}", hint="choose another, shorter name", path=str(path)
            ) from error
        raise


def is_there(path: Path) -> bool:
    """Tell whether a path exists; one that cannot (a name of 300 characters) does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_own_file(path: Path) -> bool:
    """Tell whether a file is ours alone to write: regular, no link, of this user, not writable by everybody."""
    try:
        found = path.lstat()
    except OSError:
        return False
    owner = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISREG(found.st_mode) and owner and not found.st_mode & stat.S_IWOTH


def refuse_link(path: Path) -> None:
    """Refuse to write to a file that is a symbolic link: somebody may have planted it. Whole files replace links."""
    if path.is_symlink():
        raise ToolError(
            f"{path} is a symbolic link, and is not written through",
            hint="remove the link, or choose another directory",
            path=str(path),
        )


def open_new(path: Path) -> IO[bytes]:
    """Open a new file for writing, unbuffered, in place of what is there: never through a link, symbolic or hard.

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
        # Made the ordinary way, so that the user's umask decides who may read the result.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            yield temporary
            temporary.replace(path)
        except BaseException:
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
