"""Tensors worked out once and kept on disk: latents, text states, image embeddings.

A store is a folder of safetensors shards. An entry's key is a digest of all it follows from (content,
transform; the model names the folder), so a changed picture, caption or model never finds a stale one. Each
entry has a digest of its own: one that is damaged goes with its shard and is worked out again. Shards get
names of their own and are written beside and renamed: any number of processes may add at once, and being
stopped loses only what was not yet written. A disk that is full ends the caching, not the work. Nothing here
imports torch.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cascade_train.data import measured
from cascade_train.data.sealed import sweep
from cascade_train.digest import digest
from cascade_train.errors import CascadeError
from cascade_train.files import shared, write_json, written_beside
from cascade_train.migrations import read_forward, stamped
from cascade_train.models import header

Kind = Literal["latents", "text", "images"]
KINDS: tuple[Kind, ...] = ("latents", "text", "images")

FLUSH_BYTES = 32 << 20
FLUSH_SECONDS = 30.0
_REFRESH_SECONDS = 5.0
_OPEN_SHARDS = 32
_DIGEST = "digest"
"""The tensor of each entry that holds the digest of its others: 16 of uint8."""


class Store:
    """One kind of tensors of one model. Safe from many threads; made by `open_store`."""

    def __init__(self, folder: Path, tell: Callable[[str], object] = lambda line: None) -> None:
        self.folder = folder
        self.tell = tell
        """Hears of what was damaged, a line each."""
        self.trouble = ""
        """Why nothing more is written (disk full, no permission); "" while all is well."""
        self._lock = threading.RLock()
        self._pending: dict[str, dict[str, np.ndarray]] = {}
        self._pending_bytes = 0
        self._flushed = time.monotonic()
        self._shards: list[Path] = []
        self._known: set[str] = set()
        self._keys = np.empty(0, dtype=np.uint64)
        self._shard_of = np.empty(0, dtype=np.int32)
        self._handles: OrderedDict[int, Any] = OrderedDict()
        self._looked = -1e9
        self._refresh()

    def __len__(self) -> int:
        with self._lock:
            return len(self._keys) + len(self._pending)

    def get(self, key: str) -> dict[str, np.ndarray] | None:
        """The tensors of ``key`` (32 hex digits) by name, or None. Arrays must not be written to."""
        with self._lock:
            found = self._pending.get(key)
            if found is not None:
                return found
            shard = self._find(key)
            if shard is None and time.monotonic() - self._looked > _REFRESH_SECONDS:
                self._refresh()
                shard = self._find(key)
            return None if shard is None else self._read(shard, key)

    def __contains__(self, key: str) -> bool:
        with self._lock:
            return key in self._pending or self._find(key) is not None

    def put(self, key: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Keep ``tensors`` under ``key``; they are on disk after the next `flush`."""
        with self._lock:
            if key in self or self.trouble:
                return
            self._pending[key] = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
            self._pending_bytes += sum(value.nbytes for value in self._pending[key].values())
            if self._pending_bytes > FLUSH_BYTES or time.monotonic() - self._flushed > FLUSH_SECONDS:
                self.flush()

    def flush(self) -> None:
        """Write what is new as a shard. A disk that is full ends the writing, not the work."""
        from safetensors.numpy import save_file

        with self._lock:
            self._flushed = time.monotonic()
            if not self._pending:
                return
            name = f"{time.time_ns():019d}-{os.getpid()}-{secrets.token_hex(3)}.safetensors"
            flat = {
                f"{key}.{part}": value
                for key, tensors in self._pending.items()
                for part, value in (*tensors.items(), (_DIGEST, _digest_of(key, tensors)))
            }
            try:
                with written_beside(self.folder / name) as beside:
                    save_file(flat, beside)
                    shared(beside)
            except (OSError, _damaged()) as error:  # safetensors' own error where the disk is full
                self.trouble = f"{getattr(error, 'strerror', None) or error} ({self.folder})"
                self._pending.clear()
                self._pending_bytes = 0
                return
            self._add(self.folder / name, list(self._pending))
            self._pending = {}
            self._pending_bytes = 0

    def _find(self, key: str) -> int | None:
        wanted = _short(key)
        at = int(np.searchsorted(self._keys, wanted))
        if at < len(self._keys) and self._keys[at] == wanted:
            return int(self._shard_of[at])
        return None

    def _read(self, shard: int, key: str) -> dict[str, np.ndarray] | None:
        try:
            handle, names = self._handle(shard)
            found = {name: handle.get_tensor(f"{key}.{name}") for name in names[key]}
        except KeyError:  # another key with the same beginning
            return None
        except (OSError, ValueError, RuntimeError, TypeError, CascadeError, _damaged()):
            if self._shards[shard].exists():  # else pruned meanwhile
                self._drop(shard)
            self._handles.pop(shard, None)
            return None
        told = found.pop(_DIGEST, None)
        if told is None or told.tobytes() != _digest_of(key, found).tobytes():
            self._drop(shard)
            return None
        return found

    def _drop(self, shard: int) -> None:
        """Let a damaged shard go, with all that is in it."""
        path = self._shards[shard]
        self._handles.pop(shard, None)
        keep = self._shard_of != shard
        lost = len(self._keys) - int(keep.sum())
        self._keys, self._shard_of = self._keys[keep], self._shard_of[keep]
        self._remove(path, f"{path.name} is damaged: what was in it ({lost} entries) is worked out again")

    def _remove(self, path: Path, line: str) -> None:
        try:
            path.unlink()
        except FileNotFoundError:  # another process was faster, and tells
            return
        except OSError:  # it is being read (Windows)
            pass
        self.tell(f"cache {self.folder.parent.name}: {line}")

    def _handle(self, shard: int) -> tuple[Any, dict[str, list[str]]]:
        if shard in self._handles:
            self._handles.move_to_end(shard)
        else:
            handle = _opened(self._shards[shard])
            self._handles[shard] = (handle, _grouped(handle.keys()))
            while len(self._handles) > _OPEN_SHARDS:
                self._handles.popitem(last=False)
        found: tuple[Any, dict[str, list[str]]] = self._handles[shard]
        return found

    def _refresh(self) -> None:
        """Learn of shards that other processes wrote."""
        self._looked = time.monotonic()
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.glob("*.safetensors")):
            if path.name in self._known or path.name.startswith("."):
                continue
            try:
                with _opened(path) as handle:
                    entries = _grouped(handle.keys())
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RuntimeError, CascadeError, _damaged()):
                self._known.add(path.name)
                self._remove(path, f"{path.name} is damaged: what was in it is worked out again")
                continue
            keys = [key for key, parts in entries.items() if _DIGEST in parts and _is_key(key)]
            if not keys:
                self._known.add(path.name)
                why = "is of an earlier version, without digests"
                self._remove(path, f"{path.name} {why}: what was in it is worked out again")
                continue
            self._add(path, keys)

    def _add(self, path: Path, keys: list[str]) -> None:
        self._known.add(path.name)
        self._shards.append(path)
        fresh = np.array([_short(key) for key in keys], dtype=np.uint64)
        joint = np.concatenate([self._keys, fresh])
        owners = np.concatenate([self._shard_of, np.full(len(keys), len(self._shards) - 1, dtype=np.int32)])
        order = np.argsort(joint, kind="stable")
        self._keys, self._shard_of = joint[order], owners[order]


def _short(key: str) -> np.uint64:
    """The first half of a key, which finds its shard; the shard knows it whole."""
    return np.uint64(int(key[:16], 16))


def _is_key(text: str) -> bool:
    return len(text) >= 16 and all(letter in "0123456789abcdef" for letter in text)


def _digest_of(key: str, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """16 of uint8 that change with any bit of an entry, with its shapes and its key."""
    content = hashlib.sha256(key.encode())
    for name in sorted(tensors):
        value = np.ascontiguousarray(tensors[name])
        content.update(f"{name} {value.dtype} {value.shape}".encode())
        content.update(value.data if value.size else b"")
    return np.frombuffer(content.digest()[:16], dtype=np.uint8)


def _opened(path: Path) -> Any:
    """A shard, its header checked first; CascadeError or the library's own error where it is damaged."""
    from safetensors import safe_open

    header.read(path)
    return safe_open(path, framework="np")


def _damaged() -> type[Exception]:
    from safetensors import SafetensorError

    return SafetensorError


def _grouped(names: list[str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for name in names:
        key, _, part = name.partition(".")
        out.setdefault(key, []).append(part)
    return out


_OPEN: dict[Path, Store] = {}
_OPEN_LOCK = threading.Lock()


def open_store(
    cache: Path, kind: Kind, model: str, about: str = "", tell: Callable[[str], object] = lambda line: None
) -> Store:
    """The store of ``kind`` for the model named by the digest ``model``, under the cache folder ``cache``.

    One process has one store for a folder. ``about`` is told to people by `listing`; ``tell`` hears what is
    damaged. Where nothing can be written, the store keeps nothing and says so in its ``trouble``.
    """
    folder = cache / kind / model[:32]
    with _OPEN_LOCK:
        store = _OPEN.get(folder)
        if store is None or not folder.is_dir():
            trouble = ""
            try:
                folder.mkdir(parents=True, exist_ok=True)
                sweep(folder)
                if not (folder / "about.json").exists():
                    told = {"kind": kind, "model": model, "about": about}
                    write_json(folder / "about.json", stamped("cache", told))
            except OSError as error:
                trouble = f"{error.strerror or error} ({folder})"
            store = _OPEN[folder] = Store(folder, tell)
            store.trouble = trouble
        store.tell = tell
        return store


def flush_all() -> None:
    """Write what is new in every store of this process."""
    with _OPEN_LOCK:
        stores = list(_OPEN.values())
    for store in stores:
        store.flush()
    measured.flush_all()


def text_key(caption: str) -> str:
    """The key of a caption's text states."""
    return digest(["caption", caption])


@dataclass(frozen=True)
class Kept:
    """Something in the cache folder: its kind, folder or file, what it is, bytes, entries, last use."""

    kind: str
    path: Path
    about: str
    bytes: int
    files: int
    used: float


def listing(cache: Path) -> list[Kept]:
    """What the cache folder holds, largest first."""
    out = []
    for kind in KINDS:
        for folder in sorted((cache / kind).glob("*")) if (cache / kind).is_dir() else ():
            if folder.is_dir():
                try:
                    told = read_forward(folder / "about.json", "cache")
                    about = str(told.get("about", ""))
                except (OSError, ValueError, CascadeError):
                    about = ""
                out.append(_kept(kind, folder, about or folder.name))
    for name, about in (
        ("index", "indexes of folders and tars"),
        ("measures", "what was measured of pictures"),
        ("shards", "remote shards"),
        ("pictures", "pictures from other nodes"),
        ("drawn", "pictures and latents that were drawn"),
    ):
        if (cache / name).is_dir():
            out.append(_kept(name, cache / name, about))
    return sorted(out, key=lambda kept: -kept.bytes)


def _kept(kind: str, folder: Path, about: str) -> Kept:
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return Kept(
        kind,
        folder,
        about,
        sum(s.st_size for s in files),
        len(files),
        max((max(s.st_mtime, s.st_atime) for s in files), default=0.0),
    )


def prune_caches(
    cache: Path, *, kinds: tuple[str, ...] = (), older_than: float | None = None, dry_run: bool = False
) -> list[Kept]:
    """Remove what `listing` shows, of ``kinds`` alone and not used for ``older_than`` seconds where given.

    Files of indexes and shards go one by one, stores as a whole. Nothing that training cannot make again is
    kept in a cache, so any of it may go at any time.
    """
    now = time.time()
    removed = []
    for kept in listing(cache):
        if kinds and kept.kind not in kinds:
            continue
        if kept.kind in KINDS:
            if older_than is None or now - kept.used > older_than:
                removed.append(kept)
                if not dry_run:
                    shutil.rmtree(kept.path, ignore_errors=True)
            continue
        old = [
            path
            for path in kept.path.rglob("*")
            if path.is_file()
            and (older_than is None or now - max(path.stat().st_mtime, path.stat().st_atime) > older_than)
        ]
        if old:
            size = sum(path.stat().st_size for path in old)
            removed.append(Kept(kept.kind, kept.path, kept.about, size, len(old), kept.used))
            for path in () if dry_run else old:
                path.unlink(missing_ok=True)
    return removed
