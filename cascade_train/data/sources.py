"""From what a person names (a folder, tars, pictures of other nodes) to a dataset's description."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cascade_train.data.content import whole
from cascade_train.data.folder import folder_stamp
from cascade_train.data.names import EVERY
from cascade_train.data.readers import PICTURES, folder_source, tar_source
from cascade_train.data.sealed import sweep
from cascade_train.data.spec import Dataset, Source, StreamSource, WeightedSource
from cascade_train.data.tars import unusable
from cascade_train.data.urls import expand
from cascade_train.errors import CascadeError
from cascade_train.host.progress import progress_of
from cascade_train.rasters import EXTENSIONS

if TYPE_CHECKING:
    from cascade_train.host.base import Host


_SUM = ".digest"
"""In a set of kept pictures: `_sum` of it."""


def colour(text: str) -> tuple[int, int, int]:
    """``"white"`` or ``"#ffffff"`` as RGB 0 … 255; CascadeError for anything else."""
    from PIL import ImageColor

    try:
        red, green, blue = ImageColor.getrgb(text.strip())[:3]
    except ValueError as error:
        raise CascadeError(f"'{text}' is no colour", fix="Write a name such as white, or #rrggbb") from error
    return red, green, blue


def folder_dataset(path: str, *, recursive: bool, host: Host, ending: str = "") -> Dataset:
    """The pictures in a folder that a workflow names; of those that share a key the one with ``ending``.

    Raises:
        CascadeError: the folder is missing, may not be read, or holds no picture; ``ending`` is none.
    """
    root = host.folders.resolve_read(path, "picture folder")
    index, links = host.folders.cache / "index", host.folders.link_roots()
    chosen = picture_ending(ending)
    source = folder_source(root, recursive, index, progress_of(host), host.warn, chosen, links)
    return Dataset((WeightedSource(source),))


def folder_state(path: str, recursive: bool, host: Host) -> str:
    """A text that changes when anything in the folder does; cheap (names, sizes and times only)."""
    root = host.folders.resolve_read(path, "picture folder")
    return folder_stamp(root, recursive, links=host.folders.link_roots())


def picture_ending(text: str) -> str:
    """An ending as a person writes it (``.PNG``, ``mask.png``), plain; "" where none is named.

    Raises:
        CascadeError: no picture ends so.
    """
    ending = text.strip().lower().lstrip(".")
    if ending in ("", EVERY) or ending.rpartition(".")[2] in EXTENSIONS:
        return ending
    raise CascadeError(
        f"'{text}' is no ending of pictures", fix=f"Known: {', '.join(EXTENSIONS)}; or '{EVERY}', or nothing"
    )


def tars_dataset(text: str, *, shuffle: int, host: Host, ending: str = "") -> Dataset:
    """The WebDataset shards that ``text`` names, local ones read at random, remote ones streamed; of pictures
    that share a key the one with ``ending``.

    Raises:
        CascadeError: what `urls.expand` raises; local and remote shards mixed; none is a tar; no picture has
            that ``ending``.
    """
    ending = picture_ending(ending)
    shards = expand(text, host.folders)
    remote = [shard for shard in shards if isinstance(shard, str)]
    local = [shard for shard in shards if isinstance(shard, Path)]
    if remote and local:
        raise CascadeError(
            "local and remote shards cannot be mixed",
            where=f"{local[0].name}, {remote[0]}",
            fix="Copy the remote ones to this machine, or leave the local ones out",
        )
    if remote:
        from cascade_train.data.shards import matching, require_fsspec

        require_fsspec()
        remote = [
            url
            for shard in remote
            for url in (matching(shard, host.folders.allowed_hosts) if "*" in shard else [shard])
        ]
        host.warn(
            "remote shards are streamed: the order of samples depends on what came before, so a "
            "resumed run replays the stream up to its step, and epochs are not exact"
        )
        return Dataset((WeightedSource(StreamSource(tuple(remote), shuffle, ending)),))
    progress = progress_of(host)
    index = host.folders.cache / "index"
    sources: list[Source] = []
    usable = False
    for number, shard in enumerate(local):
        progress(number, len(local), f"opening {shard.name}")
        sources.append(tar_source(shard, index, progress, host.warn, ending))
        usable = usable or not unusable(shard, index, ending)
    if not usable:
        what, fix = unusable(local[0], index, ending)
        raise CascadeError(what, where=str(local[0]), fix=fix or None)
    return Dataset(tuple(WeightedSource(source) for source in sources))


def tars_state(text: str, host: Host) -> str:
    """A text that changes when a named tar does; cheap (names, sizes and times only)."""
    state = hashlib.sha256()
    for shard in expand(text, host.folders):
        if isinstance(shard, Path):
            status = shard.stat()
            times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
            state.update(f"{shard} {status.st_size} {times}\n".encode("utf-8", "surrogateescape"))
        else:
            state.update(f"{shard}\n".encode())
    return state.hexdigest()[:32]


def pictures_dataset(
    pictures: Sequence[np.ndarray] | np.ndarray, captions: Sequence[str], *, host: Host
) -> Dataset:
    """Pictures from other nodes, (H, W, 3) floats in [0, 1] or uint8, with a caption each or one for all.

    They are kept as PNG files in the cache folder, named by their content.

    Raises:
        CascadeError: no picture, or another number of captions; they cannot be kept.
    """
    from PIL import Image

    root, words = _kept_place(pictures, captions, host)
    if root.is_dir() and not _whole(root):
        host.warn(f"kept pictures ({root.name}) were damaged or of another version, and are written anew")
        shutil.rmtree(root, ignore_errors=True)
    if not root.is_dir():
        beside = root.with_name(f".{root.name}.{secrets.token_hex(4)}.part")
        try:
            sweep(root.parent)
            beside.mkdir(parents=True)
            for number, picture in enumerate(pictures):
                Image.fromarray(_bytes(picture)).save(beside / f"{number:05}.png", compress_level=1)
                (beside / f"{number:05}.txt").write_text(words[number], encoding="utf-8", newline="")
            (beside / _SUM).write_text(_sum(beside), encoding="utf-8")
            with suppress(OSError):  # another process was faster
                beside.rename(root)
        except OSError as error:
            raise CascadeError(
                f"the pictures cannot be kept: {error.strerror or error}",
                where=str(root.parent),
                fix="Make room there, or choose another output folder",
            ) from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return Dataset((WeightedSource(folder_source(root, False, host.folders.cache / "index")),))


def _sum(folder: Path) -> str:
    """A digest of the files in ``folder``."""
    content = hashlib.sha256()
    for path in sorted(folder.glob("[0-9]*")):
        content.update(f"{path.name} {whole(path.read_bytes())}\n".encode())
    return content.hexdigest()


def _whole(folder: Path) -> bool:
    """Whether kept pictures are what was written."""
    try:
        return (folder / _SUM).read_text(encoding="utf-8") == _sum(folder)
    except (OSError, ValueError):
        return False


def kept_pictures(
    pictures: Sequence[np.ndarray] | np.ndarray, captions: Sequence[str], *, host: Host
) -> Dataset | None:
    """What `pictures_dataset` gives, where it has kept these pictures before; None where it has not."""
    root, _ = _kept_place(pictures, captions, host)
    if not _whole(root):
        return None
    return Dataset((WeightedSource(folder_source(root, False, host.folders.cache / "index")),))


def _kept_place(
    pictures: Sequence[np.ndarray] | np.ndarray, captions: Sequence[str], host: Host
) -> tuple[Path, list[str]]:
    """The folder for these pictures, named by their content, and a caption for each."""
    if not len(pictures):
        raise CascadeError("there is no picture", fix="Connect an IMAGE with at least one")
    if len(captions) not in (1, len(pictures)):
        raise CascadeError(
            f"there are {len(pictures)} pictures and {len(captions)} captions",
            fix="Write one caption for all, or one line for each picture",
        )
    words = [captions[number if len(captions) > 1 else 0].strip() for number in range(len(pictures))]
    name = hashlib.sha256(repr(words).encode("utf-8", "surrogatepass"))
    for number, picture in enumerate(pictures):
        if picture.dtype != np.uint8 and not np.isfinite(picture).all():
            raise CascadeError(
                f"picture {number + 1} of {len(pictures)} is not all numbers (NaN or infinite)",
                fix="Look at the node that made it",
            )
        name.update(repr(picture.shape).encode() + _bytes(picture).tobytes())
    return host.folders.cache / PICTURES / name.hexdigest()[:32], words


def _bytes(picture: np.ndarray) -> np.ndarray:
    """A picture (H, W, 3 or more) as contiguous uint8 RGB."""
    if picture.dtype != np.uint8:
        picture = np.round(np.clip(picture, 0, 1) * 255).astype(np.uint8)
    return np.ascontiguousarray(picture[..., :3])


def combine(datasets: Sequence[Dataset], repeats: Sequence[int], shares: Sequence[float]) -> Dataset:
    """One dataset of several; buckets and the treatment of bad samples come from the first.

    ``shares`` above 0 set how often each is seen, in proportion; with all 0 ``repeats`` do.

    Raises:
        CascadeError: some have a share and some have none, or remote shards are among them.
    """
    if any(dataset.streamed for dataset in datasets):
        raise CascadeError(
            "streamed shards cannot be combined with other datasets",
            fix="Name all remote shards in one WebDataset node, or copy them to this machine",
        )
    if any(share > 0 for share in shares) and not all(share > 0 for share in shares):
        raise CascadeError(
            "some of the combined datasets have a share and some have none",
            fix="Give each a share above 0, or none",
        )
    first = datasets[0]
    sources = tuple(
        WeightedSource(dataset, count, share) for dataset, count, share in zip(datasets, repeats, shares)
    )
    return Dataset(
        sources,
        captions=first.captions,
        buckets=first.buckets,
        on_bad=first.on_bad,
        max_bad=first.max_bad,
        background=first.background,
        cache=first.cache,
    )
