"""What is worked out ahead of a training, and a look at what the network will see."""

from __future__ import annotations

from typing import Any

from .base import DATASET, MODELS, CascadeNode, integer, link, seed, switch


class CacheLatents(CascadeNode):
    ID = "CascadeCacheLatents"
    DISPLAY_NAME = "Cache Latents"
    CATEGORY = "cascade/data"
    SEARCH_ALIASES = ("precompute latents", "latent cache", "encode dataset")
    DESCRIPTION = (
        "Keeps on disk what frozen encoders make of pictures and captions, so that later steps "
        "and later runs need not work it out again. Stopping loses nothing. It changes no result, "
        "except that with random crops each picture has a fixed number of them."
    )
    RETURN_TYPES = (DATASET,)
    RETURN_NAMES = ("dataset",)
    OUTPUT_TOOLTIPS = ("The dataset with its caches.",)
    HELP = """
    Caches lie in the cache folder, named by the pictures' content and the encoders', so a changed caption or
    model never meets old data. `cascade-train cache ls` shows them, `cascade-train cache prune` removes what
    is not used.
    """

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
    SEARCH_ALIASES = ("show dataset", "inspect dataset", "look at images", "report")
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
    OUTPUT_NODE = True
    HELP = """
    Look here before training for hours: the crops, captions and buckets are exactly those of a run with this
    seed.
    """

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

    def run(self, dataset: Any, count: int, seed: int, batch_size: int, models: Any = None) -> dict[str, Any]:
        from cascade_train.drawing.paper import to_pictures
        from cascade_train.jobs.prepare import dataset_preview
        from cascade_train.jobs.previews import shown_now

        grid, report = dataset_preview(
            dataset, models, count=count, seed=seed, batch_size=batch_size, host=self.host
        )
        shown = shown_now(to_pictures(grid)[0], "dataset", self.host)
        return {"ui": {"images": shown, "text": [report]}, "result": (grid, report)}
