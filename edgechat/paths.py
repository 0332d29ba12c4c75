"""Where edgechat keeps files of its own."""

from __future__ import annotations

import errno
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgechat.errors import SettingsError


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/edgechat`` or ``~/.cache/edgechat``: fetched models, line history."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgechat"


def read_text(path: Path) -> str:
    """A text file the user named; SettingsError when it is missing or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text ({error}).") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read ({error.strerror}).") from None


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A new temporary neighbour of ``target`` that takes its place when the body succeeds; what
    killed writers left goes first. OSError as it comes."""
    temporary = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        remove_leftovers(target)
        temporary.unlink(missing_ok=True)  # a killed process of this number may have left one
        yield temporary
        temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """A new folder that takes ``target``'s place when the body succeeds, as ``beside`` for files.
    What killed writers left is for ``remove_leftovers``, called before. OSError as it comes."""
    temporary = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        temporary.mkdir()
        yield temporary
        _replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace(temporary: Path, target: Path) -> None:
    """Rename into place; an old folder is moved aside first and removed last."""
    old = target.with_name(f".{target.name}.partial-old-{os.getpid()}")
    while True:
        with suppress(FileNotFoundError):
            target.rename(old)
        try:
            temporary.rename(target)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                if old.exists():
                    old.rename(target)
                raise
            shutil.rmtree(old, ignore_errors=True)  # another process has just put one there
    shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(target: Path) -> None:
    """Tidy up after a killed writer of ``target``, whose temporary neighbours are called
    ``.NAME.partial-PID``; an old one moved aside (``.NAME.partial-old-PID``) comes back."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.partial-*"):
        if _is_running(path.name.rsplit("-", 1)[1]):
            continue
        if path.name.startswith(f".{target.name}.partial-old-") and not target.exists():
            path.rename(target)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True
