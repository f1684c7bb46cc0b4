"""What a run has learned: looking at it, laying it over models, taking it away as a file."""

from __future__ import annotations

from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host

from .base import MODELS, PROMPTS, RUN, CascadeNode, Input, choice, integer, link, number, text


class Validate(CascadeNode):
    ID = "CascadeValidate"
    DISPLAY_NAME = "Validate"
    CATEGORY = "cascade/training"
    SEARCH_ALIASES = ("sample run", "test lora", "validation", "preview run", "before after")
    DESCRIPTION = "Draws the prompts with a run as it stands, or with plain models, as a labelled grid."
    RETURN_TYPES = ("IMAGE", "IMAGE")
    RETURN_NAMES = ("grid", "pictures")
    OUTPUT_TOOLTIPS = (
        "One sheet: a row for each prompt, a column for each seed.",
        "The pictures by themselves.",
    )
    HELP = """
    Wire a run to see it as it stands, or models to see them untrained. Grids and pictures of a run are kept
    in its folder, under `samples`, those of models in the cache folder. What was drawn once with the same
    prompts and weights is read afterwards, not drawn again, with the same bytes.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "prompts": link(PROMPTS, "What to draw."),
                "title": text("", "Stands at the top of the grid; empty says the step."),
                "strength": number(1.0, -10.0, 10.0, 0.05, "How strongly the run is laid over its models."),
            },
            "optional": {
                "run": link(RUN, "The run to look at. Wire this or models."),
                "models": link(MODELS, "Models to look at instead of a run."),
            },
        }

    def run(
        self, prompts: Any, title: str, strength: float, run: Any = None, models: Any = None
    ) -> tuple[Any, Any]:
        from cascade_train.jobs.validate import validate

        return validate(prompts, self.host, run=run, models=models, strength=strength, title=title.strip())

    def planned(
        self, prompts: Any, title: str, strength: float, run: Any = None, models: Any = None
    ) -> tuple[tuple[Any, Any], str, bool]:
        """For ``--dry-run``: the outputs, a line, and whether there is nothing left to draw."""
        from cascade_train.jobs.foreseen import planned_pictures

        pictures, text, there = planned_pictures(
            prompts, self.host, run=run, models=models, strength=strength
        )
        return (None, pictures), text, there


class CompareGrids(CascadeNode):
    ID = "CascadeCompareGrids"
    DISPLAY_NAME = "Compare Grids"
    CATEGORY = "cascade/training"
    SEARCH_ALIASES = ("grid", "contact sheet", "side by side", "image grid", "before after")
    DESCRIPTION = "Puts grids or pictures on one sheet, each under its label: before and after."
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("sheet",)
    OUTPUT_TOOLTIPS = ("All grids on one sheet.",)
    COUNT = 6
    HELP = "Pictures keep their size. Batches become a block of their own."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        labels = {
            f"label_{n}": text(("before", "after")[n - 1] if n < 3 else "", f"Stands over picture {n}.")
            for n in range(1, cls.COUNT + 1)
        }
        arranged = choice(("beside", "below"), "Next to each other or under each other.")
        return {
            "required": {"arrange": arranged, **labels},
            "optional": {
                f"image_{n}": link("IMAGE", f"Picture {n}; of a batch each.") for n in range(1, cls.COUNT + 1)
            },
        }

    def run(self, arrange: str, **inputs: Any) -> tuple[Any]:
        from cascade_train.drawing.grids import compared

        pairs = [(inputs.get(f"label_{n}", ""), inputs.get(f"image_{n}")) for n in range(1, self.COUNT + 1)]
        return (compared(pairs, arrange == "beside"),)


class ApplyRun(CascadeNode):
    ID = "CascadeApplyRun"
    DISPLAY_NAME = "Apply Run"
    CATEGORY = "cascade/training"
    SEARCH_ALIASES = ("use lora", "load run", "apply lora")
    DESCRIPTION = "Lays what a run has learned over the models."
    RETURN_TYPES = (MODELS,)
    RETURN_NAMES = ("models",)
    OUTPUT_TOOLTIPS = ("The models with the run's LoRA, tokens or weights.",)
    HELP = "The result can be wired wherever models go: to sampling, to another run, to export."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "models": link(MODELS, "The models the run was started from."),
                "run": link(RUN, "The run, at the step that is wanted."),
                "strength": number(1.0, -10.0, 10.0, 0.05, "1 is as trained, 0 is not at all."),
            }
        }

    def run(self, models: Any, run: Any, strength: float) -> tuple[Any]:
        from cascade_train.training.run import apply_trained

        return (apply_trained(models, run, strength, self.host),)


def _run(name: str, host: Host) -> None:
    from cascade_train.training.kept import folder_of

    if name.strip() in ("", NO_RUN):
        raise CascadeError("no run is chosen", fix="Choose one; the list shows those in output/cascade/runs")
    folder_of(host.folders.runs, name)


NO_RUN = "choose a run"
"""In the list of runs: none is chosen."""


class LoadRun(CascadeNode):
    ID = "CascadeLoadRun"
    DISPLAY_NAME = "Load Run"
    CATEGORY = "cascade/training"
    SEARCH_ALIASES = ("open run", "use trained lora", "resume", "checkpoint", "last training")
    DESCRIPTION = "Takes up a run of the output folder without the graph that trained it."
    CHECKS = {"name": _run}
    RETURN_TYPES = (RUN,)
    RETURN_NAMES = ("run",)
    OUTPUT_TOOLTIPS = ("For Validate, Apply Run and Export Run.",)
    HELP = """
    The list shows the runs in `output/cascade/runs`, the one that was worked on last first. Wire the models that
    it was trained on: others are refused.

    The run draws, validates and is exported as it does in its own graph, from the same files. To train it on, queue
    that graph again, which finds it where it stopped.
    """  # noqa: E501

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "models": link(MODELS, "The models that the run was trained on."),
                "name": cls._names(),
                "step": integer(0, 0, 100_000_000, "Which of its saved steps; 0 is the last one."),
            }
        }

    @classmethod
    def _names(cls) -> Input:
        from cascade_train.training.kept import names

        host: Host | None = getattr(cls, "host", None)
        return choice(
            (NO_RUN, *(names(host.folders.runs) if host is not None else ())),
            "A run by its label and name, newest first; a label alone means the newest of that label.",
        )

    @classmethod
    def IS_CHANGED(cls, name: str = "", step: int = 0, **_: Any) -> Any:
        """Again where the run has been trained further, or is gone."""
        from cascade_train.training.kept import stamp

        return stamp(cls.host.folders.runs, name)

    def run(self, models: Any, name: str, step: int) -> tuple[Any]:
        from cascade_train.training.kept import kept

        _run(name, self.host)
        return (kept(self.host.folders.runs, name, models, step, self.host.warn),)

    def planned(self, models: Any, name: str, step: int) -> tuple[tuple[Any], str, None]:
        """For ``--dry-run``: the run, a line, and that there is nothing to do."""
        (run,) = self.run(models, name, step)
        return (run,), f"run {run.spec.digest} at step {run.step}", None


def _filename(text: str, host: Host) -> None:
    if text.strip():
        from cascade_train.formats.export import export_path

        export_path(host.folders, text, host.folders.runs, "")


class ExportRun(CascadeNode):
    ID = "CascadeExportRun"
    DISPLAY_NAME = "Export Run"
    CATEGORY = "cascade/training"
    SEARCH_ALIASES = ("save lora", "save model", "write safetensors", "embedding", "textual inversion")
    DESCRIPTION = "Writes what a run has learned as a file for other programs."
    RETURN_TYPES = ("STRING", "LORA_MODEL")
    RETURN_NAMES = ("path", "lora")
    OUTPUT_TOOLTIPS = (
        "The file that was written.",
        "The run's LoRA for core's Load LoRA Model, which lays it over a core MODEL at once.",
    )
    OUTPUT_NODE = True
    HELP = """
    **ComfyUI**: one `.safetensors` with the names ComfyUI's LoRA loaders know. With a file name such as
    `loras/zorp` core's *Load LoRA* lists it; or wire `lora` into core's *Load LoRA Model*. Full weights are
    written in Stable Cascade's own layout, for *Load Diffusion Model*. **diffusers**: a folder that
    `peft.PeftModel.from_pretrained(unet, folder)` reads; of full weights one that
    `StableCascadeUNet.from_pretrained(folder)` opens. **ComfyUI checkpoint**: one file for core's *Load
    Checkpoint*: the stage that was trained, or Stage C with the LoRA worked into it, and the encoders and VAE
    that it needs. Trained tokens are written beside it, one file each (`clip_g`), for `models/embeddings`.

    A file says in its metadata what was trained, on which models and which pictures.

    Adapters of nano fit nano alone: ComfyUI's own nodes cannot load models of its size.
    """
    CHECKS = {"filename": _filename}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        from cascade_train.formats.export import FORMATS, PRECISIONS

        return {
            "required": {
                "run": link(RUN, "The run, at the step that is wanted."),
                "format": choice(
                    FORMATS,
                    "ComfyUI: names that ComfyUI's loaders know. diffusers: a folder that peft, or of full "
                    "weights diffusers, opens. ComfyUI checkpoint: the whole stage with all that it needs.",
                ),
                "filename": text(
                    "",
                    "Name inside the output folder, without an ending. Empty writes into the run's own "
                    "folder, under exports.",
                ),
                "precision": choice(
                    PRECISIONS, "Of the numbers in the file: half of them take half the room."
                ),
            }
        }

    @classmethod
    def IS_CHANGED(cls, filename: str = "", **_: Any) -> Any:
        """Export again when the file was taken away or changed by another hand."""
        from cascade_train.formats.export import export_stamp

        return export_stamp(cls.host.folders, filename)

    def run(self, run: Any, format: str, filename: str, precision: str) -> dict[str, Any]:
        from cascade_train.jobs.export import export

        path, lora, files = export(run, format, filename, precision, self.host)
        return {"ui": {"text": [str(file) for file in files]}, "result": (path, lora)}
