"""Remote shards, copied to this machine one after the other and read in sequence."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.data.sealed import sweep
from cascade_train.errors import CascadeError
from cascade_train.files import written_beside

if TYPE_CHECKING:
    from cascade_train.host.base import Host

CACHE_BYTES = 50 << 30
"""Local copies beyond this go, those used longest ago first."""

CONNECT_SECONDS, READ_SECONDS, STALL_SECONDS = 30, 60, 120
TRIES = 3
_PIECE = 1 << 20


def require_fsspec() -> None:
    """CascadeError when remote shards cannot be read for want of a library."""
    try:
        import fsspec  # noqa: F401
    except ImportError as error:
        raise CascadeError(
            "remote shards need the extra 'remote'", fix="pip install 'cascade-train[remote]'"
        ) from error


def _options(url: str) -> dict[str, Any]:
    """Time-outs for fsspec, so that a silent server is an error and not a wait for ever."""
    scheme = url.partition(":")[0].lower()
    if scheme in ("http", "https"):
        import aiohttp

        limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        return {"client_kwargs": {"timeout": limit}}
    if scheme == "s3":
        return {"config_kwargs": {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}}
    return {}


def _words(error: Exception) -> str:
    """Why a file system of fsspec gave nothing."""
    if isinstance(error, FileNotFoundError):
        if "repository not found" in str(error):  # the Hub tells those who may not see one no more than that
            return "it does not exist, or it is private and the token in HF_TOKEN, if any, may not read it"
        return "it does not exist"
    return str(error) or type(error).__name__


def _unusable(url: str, error: ImportError) -> CascadeError:
    return CascadeError(
        f"{url.partition(':')[0]}:// needs a library: {error}",
        fix="pip install 'cascade-train[remote]', or the library that is named",
    )


def matching(pattern: str) -> list[str]:
    """The URLs that match a URL with ``*`` in it, in the order of their names.

    Raises:
        CascadeError: there is none, the place cannot be listed, or a library is missing.
    """
    import fsspec

    try:
        system, path = fsspec.url_to_fs(pattern, **_options(pattern))
        names = sorted(str(name) for name in system.glob(path))
    except ImportError as error:
        raise _unusable(pattern, error) from error
    except Exception as error:  # whatever a file system of fsspec raises
        raise CascadeError(
            f"'{pattern}' cannot be looked up",
            where=_words(error),
            fix="Name the shards, for instance as a range {0000..0031}",
        ) from error
    if not names:
        raise CascadeError(f"'{pattern}' matches no file", fix="See that the bucket and the names are right")
    return [str(system.unstrip_protocol(name)) for name in names]


class _Copy:
    """One shard on its way to this machine, in a thread that never keeps the program from ending."""

    def __init__(self, url: str, path: Path) -> None:
        self.url, self.path = url, path
        self.done = threading.Event()
        self.error: Exception | None = None
        self.bytes = 0
        self._moved = time.monotonic()
        threading.Thread(target=self._run, name="cascade-shard", daemon=True).start()

    @property
    def stalled(self) -> bool:
        return time.monotonic() - self._moved > STALL_SECONDS

    def _run(self) -> None:
        for attempt in range(TRIES):
            try:
                self._fetch()
                self.error = None
                break
            except (FileNotFoundError, PermissionError, ImportError) as error:
                self.error = error
                break
            except Exception as error:  # whatever a file system of fsspec raises
                self.error = error
                time.sleep(2**attempt)
        self.done.set()

    def _fetch(self) -> None:
        import fsspec
        from filelock import FileLock

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_suffix(".lock"), timeout=STALL_SECONDS * 4):
            if self.path.exists():
                return
            with (
                fsspec.open(self.url, "rb", **_options(self.url)) as source,
                written_beside(self.path) as beside,
                beside.open("wb") as target,
            ):
                while piece := source.read(_PIECE):
                    target.write(piece)
                    self.bytes += len(piece)
                    self._moved = time.monotonic()


class ShardCache:
    """Local copies of remote shards under the folder ``cache``; the next one is fetched while one is read."""

    def __init__(self, cache: Path, host: Host | None) -> None:
        self.folder = cache / "shards"
        self._host = host
        self._copies: dict[str, _Copy] = {}
        sweep(self.folder)

    def path(self, url: str) -> Path:
        return self.folder / f"{hashlib.sha256(url.encode('utf-8')).hexdigest()[:32]}.tar"

    def begin(self, url: str) -> None:
        """Begin to copy ``url``."""
        if url not in self._copies and not self.path(url).exists():
            self._copies[url] = _Copy(url, self.path(url))

    def get(self, url: str) -> Path:
        """The local copy of ``url``, when it is there.

        Raises:
            OSError: it cannot be fetched.
            CascadeError: it needs a library that is not installed.
        """
        path = self.path(url)
        self.begin(url)
        copy = self._copies.pop(url, None)
        while copy is not None and not copy.done.wait(0.2):
            if self._host is not None:
                self._host.check_interrupt()
                self._host.progress(0, 0, f"fetching {url.rpartition('/')[2]}: {copy.bytes / 1e6:.0f} MB")
            if copy.stalled:
                raise OSError(f"no bytes for {STALL_SECONDS} seconds")
        if copy is not None and isinstance(copy.error, ImportError):
            raise _unusable(url, copy.error)
        if copy is not None and copy.error is not None:
            raise OSError(_words(copy.error))
        os.utime(path)
        self._make_room(path)
        return path

    def _make_room(self, keep: Path) -> None:
        copies = sorted(
            ((path.stat().st_mtime, path.stat().st_size, path) for path in self.folder.glob("*.tar")),
            reverse=True,
        )
        total = 0
        for _, size, path in copies:
            total += size
            if total > CACHE_BYTES and path != keep:
                path.unlink(missing_ok=True)
