"""Where pictures and captions come from."""

from __future__ import annotations

from typing import Any

from cascade_train.data.spec import Dataset, StreamSource
from cascade_train.errors import CascadeError
from cascade_train.host.base import Host

from .base import DATASET, CascadeNode, choice, integer, link, number, options, path, switch, text

_TREATMENT = {
    "on_bad": choice(
        options(Dataset, "on_bad"),
        "Pictures that are cut off, damaged or unreadable: leave them out and say so, or stop. "
        "When more than 'max_bad' are bad, training never starts.",
    ),
    "max_bad": number(
        Dataset.max_bad, 0.0, 1.0, 0.05, "Largest share of bad pictures with which training starts."
    ),
    "background": text("white", "Colour behind transparent pictures: a name, or #rrggbb."),
}
"""Inputs of every node that reads files: what becomes of bad and of transparent pictures."""


_ENDING = {
    "ending": text(
        "",
        "Where several pictures share a name (photo.jpg, photo.png), the one that ends so is used: png, "
        "mask.png; 'all' uses each. Left empty: jpg, webp, avif and heic before png, tiff, bmp and gif; the "
        "others are counted and named.",
    )
}
"""Which of several pictures of one name is meant."""


def _ending(text: str, host: Host) -> None:
    from cascade_train.data.sources import picture_ending

    picture_ending(text)


def _colour(text: str, host: Host) -> None:
    from cascade_train.data.sources import colour

    colour(text)


def _folder(text: str, host: Host) -> None:
    if not host.folders.resolve_read(text, "picture folder").is_dir():
        raise CascadeError(f"'{text}' is a file, not a folder", fix="Give a folder")


def _shards(text: str, host: Host) -> None:
    from cascade_train.data.urls import expand

    expand(text, host.folders)


class ImageFolder(CascadeNode):
    ID = "CascadeImageFolder"
    DISPLAY_NAME = "Image Folder"
    CATEGORY = "cascade/data"
    SEARCH_ALIASES = ("load dataset", "load images", "training images", "folder", "captions")
    DESCRIPTION = (
        "Pictures in a folder. A caption is the text file of the same name beside a picture "
        "(cat.png, cat.txt) or a row of a metadata.jsonl, .csv or .parquet file; Caption Options "
        "knows other ways."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run, or first through filters, captions and buckets.",)
    HELP = """
    Captions are text files of the same name (`cat.png`, `cat.txt`), or rows of a `metadata.jsonl`, `.csv` or
    `.parquet`. *Caption Options* knows other ways, *Aspect Buckets* sizes and crops. Damaged pictures are
    left out and named.
    """
    CHECKS = {"path": _folder, "background": _colour, "ending": _ending}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "path": path(
                    "bundled/crescent",
                    "A folder: inside ComfyUI's input folder, or a full path that may be read. "
                    "'bundled/crescent' holds 20 example pictures.",
                    "folder",
                ),
                "recursive": switch(True, "Also look into the folders inside."),
                **_TREATMENT,
            },
            "optional": {**_ENDING},
        }

    @classmethod
    def IS_CHANGED(cls, path: str | None, recursive: bool | None = True, **_: Any) -> Any:
        from cascade_train.data.sources import folder_state

        try:
            return folder_state(path, bool(recursive), cls.host) if path else float("nan")
        except CascadeError:
            return float("nan")

    def run(self, path: str, recursive: bool, **treatment: Any) -> tuple[Any]:
        from cascade_train.jobs.datasets import image_folder

        return (image_folder(path, recursive=recursive, host=self.host, **treatment),)


class WebDataset(CascadeNode):
    ID = "CascadeWebDataset"
    DISPLAY_NAME = "WebDataset"
    CATEGORY = "cascade/data"
    SEARCH_ALIASES = ("tar", "shards", "load dataset", "s3", "laion")
    DESCRIPTION = (
        "Pictures in tar shards (0000.jpg, 0000.txt, 0000.json, …). Tars on this machine are "
        "indexed once and read at random. Remote ones are streamed through a local copy: then "
        "order and resume are exact only by replaying the stream, and epochs are approximate."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run, or first through filters, captions and buckets.",)
    HELP = """
    A shard is a tar with members `0000.jpg`, `0000.txt`, `0000.json`, … Shards on this machine are indexed
    once and then read at random. Remote shards need `pip install cascade-train[remote]`.
    """
    CHECKS = {"shards": _shards, "background": _colour, "ending": _ending}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "shards": text(
                    "",
                    "One a line: a tar, a folder of tars, a range (set/{0000..0031}.tar), a "
                    "pattern (set/*.tar), a .yml list, or a URL (s3://, gs://, hf://, https://; "
                    "needs the extra 'remote').",
                    lines=True,
                ),
                **_TREATMENT,
                "shuffle_buffer": integer(
                    StreamSource.shuffle, 1, 1_000_000, "Remote shards only: samples held to shuffle within."
                ),
            },
            "optional": {**_ENDING},
        }

    @classmethod
    def IS_CHANGED(cls, shards: str | None, **_: Any) -> Any:
        from cascade_train.data.sources import tars_state

        try:
            return tars_state(shards, cls.host) if shards else float("nan")
        except (CascadeError, OSError):
            return float("nan")

    def run(self, shards: str, shuffle_buffer: int, **treatment: Any) -> tuple[Any]:
        from cascade_train.jobs.datasets import web_dataset

        return (web_dataset(shards, shuffle_buffer=shuffle_buffer, host=self.host, **treatment),)


class DatasetFromImages(CascadeNode):
    ID = "CascadeDatasetFromImages"
    DISPLAY_NAME = "Dataset From Images"
    CATEGORY = "cascade/data"
    SEARCH_ALIASES = ("images to dataset", "prior preservation", "regularization images")
    DESCRIPTION = "Pictures that other nodes made or loaded, with captions, as a dataset."
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run, or first through filters, captions and buckets.",)
    INPUT_IS_LIST = True
    HELP = """
    Anything that makes an IMAGE can be trained on: loaded pictures, pictures of another model, crops.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "images": link("IMAGE", "One picture, a batch, or a list of pictures of different sizes."),
                "captions": text("", "One line for each picture, or one line for all.", lines=True),
            }
        }

    def run(self, images: list[Any], captions: list[str]) -> tuple[Any]:
        from cascade_train.jobs.datasets import from_images

        return (from_images(images, captions, self.host),)

    def planned(self, images: list[Any], captions: list[str]) -> tuple[tuple[Any], str, bool | None]:
        """For ``--dry-run``: the dataset, where the pictures are known and kept already."""
        from cascade_train.jobs.foreseen import planned_dataset

        dataset, text, there = planned_dataset(images, captions, self.host)
        return (dataset,), text, there
