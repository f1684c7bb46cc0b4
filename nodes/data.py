"""Datasets: which samples are used, how they are captioned and how they are cropped."""

from __future__ import annotations

from typing import Any

from cascade_train.data.filters.near_duplicates import duplicate_filters
from cascade_train.data.spec import REFERENCE_RATIOS, BucketSpec, CaptionSpec, WeightedSource
from cascade_train.host.base import Host

from .base import DATASET, CascadeNode, choice, integer, link, number, options, switch, text


def _filters(text: str, host: Host) -> None:
    from cascade_train.data.expressions import filter_lines

    filter_lines(text)


class FilterSamples(CascadeNode):
    ID = "CascadeFilterSamples"
    DISPLAY_NAME = "Filter Samples"
    CATEGORY = "cascade/data"
    SEARCH_ALIASES = ("filter dataset", "aesthetic score", "duplicates", "blurry", "select images")
    DESCRIPTION = (
        "Leaves samples out: by what their metadata, caption, size and pixels say, and duplicates. "
        "What is left out is counted by reason; a sample without a field that is asked for is left "
        "out too. Several of these nodes in a row all count, in their order."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("The dataset without what was filtered.",)
    HELP = """
    Expressions see the metadata's fields and `width`, `height`, `aspect`, `file_size`, `file_name`, the first
    `caption` and the list `captions`, and what is measured from the pixels: `sharpness` (some 10 for a
    blurred photograph, hundreds for a sharp one) and `brightness` (0 to 1). Each picture is decoded for that
    once ever. They are evaluated by a small safe evaluator: arithmetic, comparisons, `contains`,
    `and`/`or`/`not`, a few functions, nothing else.
    """
    CHECKS = {"filters": _filters}

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
                    options(duplicate_filters, "choice"),
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

    def run(self, dataset: Any, filters: str, duplicates: Any, near_distance: int) -> tuple[Any]:
        from cascade_train.data.filters.expression import expression_filters

        return (
            dataset.with_filters(*expression_filters(filters), *duplicate_filters(duplicates, near_distance)),
        )


class CombineDatasets(CascadeNode):
    ID = "CascadeCombineDatasets"
    DISPLAY_NAME = "Combine Datasets"
    CATEGORY = "cascade/data"
    SEARCH_ALIASES = ("merge datasets", "concat", "repeats", "mix")
    DESCRIPTION = (
        "Several datasets as one. Each keeps its own captions and filters; buckets come from the "
        "first, or from Aspect Buckets behind this node."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("All of them together.",)
    HELP = "Repeats multiply a small set; shares fix how the sets are mixed whatever their sizes."

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
            into[f"repeats_{position}"] = integer(WeightedSource.repeats, 1, 10_000, repeats)
            into[f"share_{position}"] = number(WeightedSource.share, 0.0, 1e6, 0.1, share)
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


def _getter(text: str, host: Host) -> None:
    from cascade_train.data.expressions import normalise

    if text.strip():
        normalise(text)


class CaptionOptions(CascadeNode):
    ID = "CascadeCaptionOptions"
    DISPLAY_NAME = "Caption Options"
    CATEGORY = "cascade/data"
    SEARCH_ALIASES = ("captions", "tags", "trigger word", "shuffle tags", "prompt template")
    DESCRIPTION = (
        "Where captions come from and how they are varied from step to step. Leaving captions out "
        "altogether for a share of the samples, which guidance needs, is set in Training Run (5 "
        "%)."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("The dataset with these captions.",)
    HELP = """
    To train a subject with one sentence for all pictures, choose `fixed` as source and write `a photo of
    [mycat]`, with `[mycat]` in *Train Tokens*.
    """
    CHECKS = {"getter": _getter}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "dataset": link(DATASET, "What to caption."),
                "source": choice(
                    options(CaptionSpec, "source"),
                    "beside: a text file of the same name, else the metadata field. fixed: the same "
                    "words for all, such as 'a photo of [zorp]'.",
                ),
                "extension": text(
                    CaptionSpec.extension, "Ending of the text files; .txt and .caption are found anyway."
                ),
                "field": text(
                    CaptionSpec.field,
                    "Field of the metadata (json, jsonl, csv, parquet) that holds the "
                    "caption, or a list of captions of which one is drawn each step.",
                ),
                "getter": text(
                    "",
                    "An expression that makes the caption from the metadata, instead of a field: "
                    "title + ', ' + author, or [field, 'lambda c: lower(c)'].",
                ),
                "fixed": text("", "The words for 'fixed'."),
                "missing": choice(options(CaptionSpec, "fallback"), "What a picture without caption gets."),
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
                "separator": text(CaptionSpec.separator, "What stands between tags."),
            }
        }

    def run(self, dataset: Any, missing: Any, getter: str, **settings: Any) -> tuple[Any]:
        from cascade_train.jobs.datasets import with_caption_options

        return (with_caption_options(dataset, getter, fallback=missing, **settings),)


def _ratios(text: str, host: Host) -> None:
    from cascade_train.data.buckets import parse_ratios

    parse_ratios(text)


def _resolutions(text: str, host: Host) -> None:
    from cascade_train.data.buckets import parse_resolutions

    parse_resolutions(text)


class AspectBuckets(CascadeNode):
    ID = "CascadeAspectBuckets"
    DISPLAY_NAME = "Aspect Buckets"
    CATEGORY = "cascade/data"
    SEARCH_ALIASES = ("bucketing", "resolution", "crop", "aspect ratio", "resize")
    DESCRIPTION = (
        "Which picture sizes are trained. Each picture goes to the bucket whose aspect is nearest "
        "to its own; a batch never mixes buckets. Without this node all pictures are square."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("The dataset with these buckets.",)
    HELP = """
    Full-size models are trained at 768 pixels, whose 24×24 latents are what 1024 pixels are sampled at.
    Encoding 1024 pixels would give 32×32, a grid the model does not draw at.
    """
    CHECKS = {"ratios": _ratios, "resolutions": _resolutions}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
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
                    options(BucketSpec, "crop"),
                    "Which part of a picture is shown. random: another each step.",
                ),
                "resize": choice(
                    options(BucketSpec, "resize"),
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
                    options(BucketSpec, "leftovers"),
                    "A bucket with fewer pictures than a batch: fill the batch with repeats, or "
                    "merge it into the bucket of the nearest aspect.",
                ),
            }
        }

    def run(self, dataset: Any, ratios: str, resolutions: str, **settings: Any) -> tuple[Any]:
        from cascade_train.jobs.datasets import with_buckets

        return (with_buckets(dataset, ratios, resolutions, **settings),)
