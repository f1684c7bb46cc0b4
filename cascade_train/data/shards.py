"""Remote shards, copied to this machine one after the other and read in sequence."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cascade_train.data.hosts import Client, check_url
from cascade_train.data.sealed import sweep
from cascade_train.errors import CascadeError
from cascade_train.files import written_beside

if TYPE_CHECKING:
    from cascade_train.host.base import Host

_T = TypeVar("_T")

CACHE_BYTES = 50 << 30
"""Local copies beyond this go, those used longest ago first."""

SHARD_BYTES = CACHE_BYTES
"""A shard that is larger is not fetched."""

CONNECT_SECONDS, READ_SECONDS, STALL_SECONDS = 30, 60, 120
PAUSES = (1.0, 2.0, 4.0)
"""Seconds before each further try where a server fails or is not there."""
_PIECE = 1 << 20


class TooLarge(OSError):
    """A shard beyond `SHARD_BYTES`."""


def require_fsspec() -> None:
    """CascadeError when remote shards cannot be read for want of a library."""
    try:
        import fsspec  # noqa: F401
    except ImportError as error:
        raise CascadeError(
            "remote shards need the extra 'remote'", fix="pip install 'cascade-train[remote]'"
        ) from error


def _options(url: str, allowed: Sequence[str]) -> dict[str, Any]:
    """For fsspec: time-outs, so that a silent server is an error and not a wait for ever, and the guard of
    `hosts` over what http leads to."""
    scheme = url.partition(":")[0].lower()
    if scheme in ("http", "https"):
        import aiohttp

        limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        return {"client_kwargs": {"timeout": limit}, "get_client": Client(tuple(allowed))}
    if scheme == "s3":
        return {"config_kwargs": {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}}
    return {}


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error of aiohttp or of the Hub's client tells."""
    for said in (
        getattr(error, "status", None),
        getattr(getattr(error, "response", None), "status_code", None),
    ):
        if isinstance(said, int):
            return said
    return None


def _cause(error: BaseException) -> BaseException:
    """What is behind an error: fsspec calls a server that fails or is not there a file that is not found, and
    others wrap what the guard says."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, CascadeError):
            return seen
        status = _status(seen)
        fails = status is not None and (status >= 500 or status == 429)
        gone = status is None and isinstance(seen, OSError) and not isinstance(seen, FileNotFoundError)
        if isinstance(error, FileNotFoundError) and (fails or gone):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error


def _final(error: BaseException) -> bool:
    """Whether another try would end the same."""
    if isinstance(error, (FileNotFoundError, PermissionError, ImportError, CascadeError, TooLarge)):
        return True
    status = _status(error)
    return status is not None and 400 <= status < 500 and status not in (408, 425, 429)


def _words(error: BaseException) -> str:
    """Why a file system of fsspec gave nothing."""
    if isinstance(error, FileNotFoundError):
        if "repository not found" in str(error):  # the Hub tells those who may not see one no more than that
            return "it does not exist, or it is private and the token in HF_TOKEN, if any, may not read it"
        return "it does not exist"
    status = _status(error)
    if status is not None and hasattr(error, "status"):
        said = f"the server answers {status} {getattr(error, 'message', '')}".strip()
        return f"{said}: it fails" if status >= 500 else said
    code = getattr(getattr(error, "os_error", error), "errno", None)
    if isinstance(error, ConnectionRefusedError) or code == errno.ECONNREFUSED:
        return "the connection is refused: no server listens there"
    if isinstance(error, TimeoutError):
        return "the server does not answer"
    if code == errno.ENOSPC:
        return "the disk is full"
    if isinstance(error, CascadeError):
        return str(error).rstrip(".")
    return str(error) or type(error).__name__


def _unusable(url: str, error: ImportError) -> CascadeError:
    return CascadeError(
        f"{url.partition(':')[0]}:// needs a library: {error}",
        fix="pip install 'cascade-train[remote]', or the library that is named",
    )


def matching(pattern: str, allowed: Sequence[str] = ()) -> list[str]:
    """The URLs that match a URL with ``*`` in it, in the order of their names.

    ``allowed`` are hosts that may be reached though they are not public.

    Raises:
        CascadeError: there is none, the place cannot be listed, or a library is missing.
    """
    import fsspec

    check_url(pattern, allowed)
    try:
        system, path = fsspec.url_to_fs(pattern, **_options(pattern, allowed))
        names = sorted(str(name) for name in _patiently(lambda: system.glob(path)))
        if not names and pattern.startswith("http"):  # a server that fails lists nothing, and does not say so
            system.ls(path[: path.index("*")].rpartition("/")[0] + "/", detail=False)
    except ImportError as error:
        raise _unusable(pattern, error) from error
    except Exception as error:  # whatever a file system of fsspec raises
        cause = _cause(error)
        if isinstance(cause, CascadeError):
            raise cause from None
        raise CascadeError(
            f"'{pattern}' cannot be looked up",
            where=_words(cause),
            fix="Name the shards, for instance as a range {0000..0031}",
        ) from error
    if not names:
        raise CascadeError(f"'{pattern}' matches no file", fix="See that the bucket and the names are right")
    return [str(system.unstrip_protocol(name)) for name in names]


def _patiently(ask: Callable[[], _T], told: Callable[[str], None] = lambda why: None) -> _T:
    """What ``ask`` gives, tried again after growing pauses where a server fails or is not there.

    ``told`` is told why before each pause. Raises what is behind the last error.
    """
    for pause in (*PAUSES, None):
        try:
            return ask()
        except Exception as error:  # whatever a file system of fsspec raises
            cause = _cause(error)
            if pause is None or _final(cause):
                raise cause from None
            told(_words(cause))
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


class _Copy:
    """One shard on its way to this machine, in a thread that never keeps the program from ending."""

    def __init__(self, url: str, path: Path, allowed: Sequence[str]) -> None:
        self.url, self.path, self.allowed = url, path, tuple(allowed)
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.bytes = 0
        self.trouble = ""
        """Why it is tried again, while it is."""
        self._moved = time.monotonic()
        threading.Thread(target=self._run, name="cascade-shard", daemon=True).start()

    @property
    def stalled(self) -> bool:
        return time.monotonic() - self._moved > STALL_SECONDS

    def _run(self) -> None:
        try:
            check_url(self.url, self.allowed)
            _patiently(self._fetch, self._again)
        except Exception as error:  # whatever a file system of fsspec raises
            self.error = error
        self.done.set()

    def _again(self, why: str) -> None:
        self.trouble, self._moved = why, time.monotonic()

    def _fetch(self) -> None:
        from filelock import FileLock

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_suffix(".lock"), timeout=STALL_SECONDS * 4):
            if not self.path.exists():
                self.bytes = 0
                with written_beside(self.path) as beside:
                    self._copy(beside)
        self.trouble = ""

    def _copy(self, to: Path) -> None:
        import fsspec

        options = _options(self.url, self.allowed)
        if self.url.lower().startswith("http"):  # in one request, whose answer says what is wrong
            system, path = fsspec.url_to_fs(self.url, **options)
            system.get_file(path, str(to), callback=_counting(self))
            return
        with fsspec.open(self.url, "rb", **options) as source, to.open("wb") as target:
            self.expect(getattr(source, "size", None))
            while piece := source.read(_PIECE):
                target.write(piece)
                self.count(len(piece))

    def expect(self, size: int | None) -> None:
        """Raises TooLarge for a shard that says it is too large."""
        if size is not None and size > SHARD_BYTES:
            raise TooLarge(f"it holds {size / 1e9:.0f} GB, and a shard may hold {SHARD_BYTES / 1e9:.0f}")

    def count(self, more: int) -> None:
        self.bytes += more
        self._moved = time.monotonic()
        self.expect(self.bytes)


def _counting(copy: _Copy) -> Any:
    """What fsspec tells how far a copy is."""
    from fsspec.callbacks import Callback

    class Counting(Callback):
        def set_size(self, size: int | None) -> None:
            copy.expect(size)

        def relative_update(self, inc: int = 1) -> None:
            copy.count(inc)

    return Counting()


class ShardCache:
    """Local copies of remote shards under the folder ``cache``; the next one is fetched while one is read."""

    def __init__(self, cache: Path, host: Host | None) -> None:
        self.folder = cache / "shards"
        self._host = host
        self._allowed = host.folders.allowed_hosts if host is not None else ()
        self._copies: dict[str, _Copy] = {}
        sweep(self.folder)

    def path(self, url: str) -> Path:
        return self.folder / f"{hashlib.sha256(url.encode('utf-8')).hexdigest()[:32]}.tar"

    def begin(self, url: str) -> None:
        """Begin to copy ``url``."""
        if url not in self._copies and not self.path(url).exists():
            self._copies[url] = _Copy(url, self.path(url), self._allowed)

    def get(self, url: str) -> Path:
        """The local copy of ``url``, when it is there.

        Raises:
            OSError: it cannot be fetched.
            CascadeError: it needs a library that is not installed, or leads where a workflow may not look.
        """
        path = self.path(url)
        self.begin(url)
        copy = self._copies.pop(url, None)
        while copy is not None and not copy.done.wait(0.2):
            if self._host is not None:
                self._host.check_interrupt()
                state = f"{copy.trouble}; trying again" if copy.trouble else f"{copy.bytes / 1e6:.0f} MB"
                self._host.progress(0, 0, f"fetching {url.rpartition('/')[2]}: {state}")
            if copy.stalled:
                raise OSError(f"no bytes for {STALL_SECONDS} seconds")
        if copy is not None and isinstance(copy.error, ImportError):
            raise _unusable(url, copy.error)
        if copy is not None and isinstance(copy.error, CascadeError):
            raise copy.error
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
