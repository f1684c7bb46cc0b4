"""Datasets: where pictures and captions come from, which of them are used, and how they are cropped."""

from __future__ import annotations

from typing import Any

from .base import DATASET, MODELS, CascadeNode, choice, integer, link, number, path, seed, switch, text

_TREATMENT = {
    "on_bad": choice(
        ("skip", "error"),
        "Pictures that are cut off, damaged or unreadable: leave them out and say so, or stop. "
        "When more than 'max_bad' are bad, training never starts.",
    ),
    "max_bad": number(0.5, 0.0, 1.0, 0.05, "Largest share of bad pictures with which training starts."),
    "background": text("white", "Colour behind transparent pictures: a name, or #rrggbb."),
}
"""Inputs of every node that reads files: what becomes of bad and of transparent pictures."""


class ImageFolder(CascadeNode):
    ID = "CascadeImageFolder"
    DISPLAY_NAME = "Image Folder"
    CATEGORY = "cascade/data"
    DESCRIPTION = (
        "Pictures in a folder. A caption is the text file of the same name beside a picture "
        "(cat.png, cat.txt) or a row of a metadata.jsonl, .csv or .parquet file; Caption Options "
        "knows other ways."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run, or first through filters, captions and buckets.",)

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
            }
        }

    @classmethod
    def IS_CHANGED(cls, path: str | None, recursive: bool | None = True, **_: Any) -> Any:
        from cascade_train.data.sources import folder_state
        from cascade_train.errors import CascadeError

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
    DESCRIPTION = (
        "Pictures in tar shards (0000.jpg, 0000.txt, 0000.json, …). Tars on this machine are "
        "indexed once and read at random. Remote ones are streamed through a local copy: then "
        "order and resume are exact only by replaying the stream, and epochs are approximate."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run, or first through filters, captions and buckets.",)

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
                    1000, 1, 1_000_000, "Remote shards only: samples held to shuffle within."
                ),
            }
        }

    @classmethod
    def IS_CHANGED(cls, shards: str | None, **_: Any) -> Any:
        from cascade_train.data.sources import tars_state
        from cascade_train.errors import CascadeError

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
    DESCRIPTION = "Pictures that other nodes made or loaded, with captions, as a dataset."
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run, or first through filters, captions and buckets.",)
    INPUT_IS_LIST = True

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


class FilterSamples(CascadeNode):
    ID = "CascadeFilterSamples"
    DISPLAY_NAME = "Filter Samples"
    CATEGORY = "cascade/data"
    DESCRIPTION = (
        "Leaves samples out: by what their metadata, caption, size and pixels say, and duplicates. "
        "What is left out is counted by reason; a sample without a field that is asked for is left "
        "out too. Several of these nodes in a row all count, in their order."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("The dataset without what was filtered.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "dataset": link(DATASET, "What to choose from."),
                "filters": text(
                    "width >= 32 and height >= 32",
                    "One a line; a sample has to pass all. Fields of the metadata, and width, "
                    "height, aspect, file_size, file_name, caption, captions, and, measured from the "
                    "pixels, sharpness and brightness (0 to 1): aesthetic_score > 4.5 and aspect < 2, "
                    "caption contains 'cat', sharpness > 100. The form [aesthetic_score, 'lambda s: s "
                    "> 4.5'] works too.",
                    lines=True,
                ),
                "duplicates": choice(
                    ("keep", "remove", "remove near"),
                    "'remove' keeps the first of equal files; 'remove near' also of pictures "
                    "that look the same (decodes every picture, once ever).",
                ),
                "near_distance": integer(
                    3,
                    0,
                    16,
                    "How different near duplicates may be: differing bits of a 64-bit difference hash.",
                ),
            }
        }

    def run(self, dataset: Any, filters: str, duplicates: str, near_distance: int) -> tuple[Any]:
        from cascade_train.data.filters.expression import expression_filters
        from cascade_train.data.filters.near_duplicates import duplicate_filters

        return (
            dataset.with_filters(*expression_filters(filters), *duplicate_filters(duplicates, near_distance)),
        )


class CombineDatasets(CascadeNode):
    ID = "CascadeCombineDatasets"
    DISPLAY_NAME = "Combine Datasets"
    CATEGORY = "cascade/data"
    DESCRIPTION = (
        "Several datasets as one. Each keeps its own captions and filters; buckets come from the "
        "first, or from Aspect Buckets behind this node."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("All of them together.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        repeats = "How often an epoch sees each of its samples."
        share = (
            "Its part of an epoch relative to the others' shares, whatever their sizes; 0 uses the "
            "repeats. Give all a share or none."
        )
        required: dict[str, Any] = {}
        optional: dict[str, Any] = {}
        for position in (1, 2, 3, 4):
            into = required if position <= 2 else optional
            into[f"dataset_{position}"] = link(DATASET, "One of the datasets.")
            into[f"repeats_{position}"] = integer(1, 1, 10_000, repeats)
            into[f"share_{position}"] = number(0.0, 0.0, 1e6, 0.1, share)
        return {"required": required, "optional": optional}

    def run(self, **given: Any) -> tuple[Any]:
        from cascade_train.data.sources import combine

        used = [p for p in (1, 2, 3, 4) if given.get(f"dataset_{p}") is not None]
        return (
            combine(
                [given[f"dataset_{p}"] for p in used],
                [int(given.get(f"repeats_{p}", 1)) for p in used],
                [float(given.get(f"share_{p}", 0.0)) for p in used],
            ),
        )


class CaptionOptions(CascadeNode):
    ID = "CascadeCaptionOptions"
    DISPLAY_NAME = "Caption Options"
    CATEGORY = "cascade/data"
    DESCRIPTION = (
        "Where captions come from and how they are varied from step to step. Leaving captions out "
        "altogether for a share of the samples, which guidance needs, is set in Training Run (5 "
        "%)."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("The dataset with these captions.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "dataset": link(DATASET, "What to caption."),
                "source": choice(
                    ("beside", "metadata", "file name", "folder name", "fixed"),
                    "beside: a text file of the same name, else the metadata field. fixed: the same "
                    "words for all, such as 'a photo of [zorp]'.",
                ),
                "extension": text(".txt", "Ending of the text files; .txt and .caption are found anyway."),
                "field": text(
                    "caption",
                    "Field of the metadata (json, jsonl, csv, parquet) that holds the "
                    "caption, or a list of captions of which one is drawn each step.",
                ),
                "getter": text(
                    "",
                    "An expression that makes the caption from the metadata, instead of a field: "
                    "title + ', ' + author, or [field, 'lambda c: lower(c)'].",
                ),
                "fixed": text("", "The words for 'fixed'."),
                "missing": choice(
                    ("error", "empty", "file name", "fixed"), "What a picture without caption gets."
                ),
                "lines": switch(
                    False, "Each line of a text file is a caption of its own; one is drawn each step."
                ),
                "prefix": text("", "Put in front of every caption."),
                "suffix": text("", "Put behind every caption."),
                "shuffle_tags": switch(False, "Bring the tags into another order each step."),
                "keep_first": integer(
                    0, 0, 1000, "So many tags stay in front, neither shuffled nor dropped."
                ),
                "tag_dropout": number(
                    0.0, 0.0, 1.0, 0.05, "Probability that a tag is left out, each step anew."
                ),
                "separator": text(",", "What stands between tags."),
            }
        }

    def run(self, dataset: Any, missing: str, getter: str, **settings: Any) -> tuple[Any]:
        from cascade_train.jobs.datasets import with_caption_options

        return (with_caption_options(dataset, getter, fallback=missing, **settings),)


class AspectBuckets(CascadeNode):
    ID = "CascadeAspectBuckets"
    DISPLAY_NAME = "Aspect Buckets"
    CATEGORY = "cascade/data"
    DESCRIPTION = (
        "Which picture sizes are trained. Each picture goes to the bucket whose aspect is nearest "
        "to its own; a batch never mixes buckets. Without this node all pictures are square."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("The dataset with these buckets.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        from cascade_train.data.spec import REFERENCE_RATIOS

        return {
            "required": {
                "dataset": link(DATASET, "What to sort into buckets."),
                "size": integer(
                    0,
                    0,
                    16384,
                    "Buckets have about size × size pixels. 0 is the models' own size "
                    "(768 for Stable Cascade: 24×24 latents, what it samples at 1024).",
                ),
                "ratios": text(
                    ", ".join(REFERENCE_RATIOS), "Aspect ratios, width/height; their inverses are added."
                ),
                "resolutions": text("", "Exact sizes instead of ratios, such as 768x768, 896x640."),
                "crop": choice(
                    ("random", "center", "top left", "top right", "bottom left", "bottom right"),
                    "Which part of a picture is shown. random: another each step.",
                ),
                "resize": choice(
                    ("cover", "none", "stretch", "pad"),
                    "cover: resize until the bucket is filled, then crop. none: crop at the "
                    "picture's own scale. stretch: ignore the aspect. pad: show all, fill the rest "
                    "with the background colour.",
                ),
                "random_share": number(
                    0.05,
                    0.0,
                    1.0,
                    0.01,
                    "Share of the pictures that go to a random bucket, so that subjects are "
                    "seen in other aspects too.",
                ),
                "min_side": integer(0, 0, 16384, "Pictures whose shorter side is below this are left out."),
                "max_side": integer(
                    0,
                    0,
                    65536,
                    "With resize 'none': pictures whose shorter side is above this are brought "
                    "down to 'downsample' first. 0 never.",
                ),
                "downsample": integer(0, 0, 65536, "See max_side."),
                "upscale": switch(
                    True,
                    "Off: a picture too small for its bucket is trained at its own size, "
                    "rounded down, instead of being enlarged.",
                ),
                "leftovers": choice(
                    ("fill", "merge"),
                    "A bucket with fewer pictures than a batch: fill the batch with repeats, or "
                    "merge it into the bucket of the nearest aspect.",
                ),
            }
        }

    def run(self, dataset: Any, ratios: str, resolutions: str, **settings: Any) -> tuple[Any]:
        from cascade_train.jobs.datasets import with_buckets

        return (with_buckets(dataset, ratios, resolutions, **settings),)


class CacheLatents(CascadeNode):
    ID = "CascadeCacheLatents"
    DISPLAY_NAME = "Cache Latents"
    CATEGORY = "cascade/data"
    DESCRIPTION = (
        "Keeps on disk what frozen encoders make of pictures and captions, so that later steps "
        "and later runs need not work it out again. Stopping loses nothing. It changes no result, "
        "except that with random crops each picture has a fixed number of them."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("The dataset with its caches.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "dataset": link(DATASET, "What to cache."),
                "models": link(MODELS, "Whose encoders."),
                "ahead": switch(
                    True, "Work everything out now. Off: while training, the first time each is needed."
                ),
                "latents": switch(True, "Keep the pictures' latents."),
                "texts": switch(
                    True, "Keep the captions' text states (not when tokens or the text model are trained)."
                ),
                "crops": integer(
                    4,
                    0,
                    1000,
                    "With random crops: how many fixed ones each picture has. 0 keeps "
                    "drawing new ones, whose latents are then not worth keeping.",
                ),
            }
        }

    def run(
        self, dataset: Any, models: Any, ahead: bool, latents: bool, texts: bool, crops: int
    ) -> tuple[Any]:
        from cascade_train.jobs.prepare import with_caches

        return (
            with_caches(
                dataset, models, latents=latents, texts=texts, crops=crops, ahead=ahead, host=self.host
            ),
        )

    def planned(self, ahead: bool, **rest: Any) -> tuple[tuple[Any], str, bool]:
        """For ``--dry-run``: the outputs, a line, and whether there is nothing left to do."""
        from cascade_train.jobs.foreseen import planned_caches

        cached, text, there = planned_caches(ahead=ahead, host=self.host, **rest)
        return (cached,), text, there


class DatasetPreview(CascadeNode):
    ID = "CascadeDatasetPreview"
    DISPLAY_NAME = "Dataset Preview"
    CATEGORY = "cascade/data"
    DESCRIPTION = (
        "Shows what the network will really see: cropped pictures with bucket, latent grid and "
        "caption, and a report of what was found, left out and why."
    )
    RETURN_TYPES = ("IMAGE", "STRING")
    RETURN_NAMES = ("grid", "report")
    OUTPUT_TOOLTIPS = (
        "Pictures as they are trained.",
        "Counts of samples, buckets, captions, and what was left out.",
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "dataset": link(DATASET, "What to look at."),
                "count": integer(16, 1, 256, "Pictures to show."),
                "seed": seed("Which pictures and crops: those of a run with this seed."),
                "batch_size": integer(4, 1, 4096, "The batch of the run, to see which buckets are smaller."),
            },
            "optional": {
                "models": link(
                    MODELS, "The models to train, which set the sizes. Without them: those of Stable Cascade."
                )
            },
        }

    def run(
        self, dataset: Any, count: int, seed: int, batch_size: int, models: Any = None
    ) -> tuple[Any, str]:
        from cascade_train.jobs.prepare import dataset_preview

        return dataset_preview(dataset, models, count=count, seed=seed, batch_size=batch_size, host=self.host)


NODES = (
    ImageFolder,
    WebDataset,
    DatasetFromImages,
    FilterSamples,
    CombineDatasets,
    CaptionOptions,
    AspectBuckets,
    CacheLatents,
    DatasetPreview,
)
