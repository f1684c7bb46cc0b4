"""What can be said against a run before anything is loaded: its settings, its layers, its words.

Layers are looked up in the header of Stage C's file, words in the tokenizer's files. Imports no torch.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from cascade_train.errors import CascadeError
from cascade_train.models import build, library, weights
from cascade_train.models.spec import ModelsSpec, Part
from cascade_train.training.filters import hit, layers_in
from cascade_train.training.spec import FullTarget, LoRATarget, RunSpec, TokenSpec
from cascade_train.training.tokens import found_entries


def check(spec: RunSpec) -> None:
    """Raises CascadeError for settings that cannot train, a filter that hits no layer of the models, an
    expression that finds no word of theirs."""
    for what, value, low in (("batch size", spec.batch_size, 1), ("accumulation", spec.accumulation, 1),
                             ("planned total of steps", spec.total_steps, 1)):
        if value < low:
            raise CascadeError(f"the {what} is {value}", fix=f"Use {low} or more")
    for what, share in (("caption dropout", spec.caption_dropout), ("image share", spec.image_share)):
        if not 0 <= share <= 1:
            raise CascadeError(f"the {what} is {share}", fix="Use a share from 0 to 1")
    if spec.optimizer.learning_rate < 0:
        raise CascadeError(f"the learning rate is {spec.optimizer.learning_rate}", fix="Use 0 or more")
    if not 0 <= spec.optimizer.ema < 1:
        raise CascadeError(f"the EMA decay is {spec.optimizer.ema}", fix="Use 0 (none) to just under 1")
    if isinstance(spec.target, LoRATarget) and not spec.target.modules.strip() and retaught(spec):
        raise CascadeError(f"tokens alone cannot make these models predict {spec.objective}",
                           fix=f"Choose the objective {predicted(spec.models, 'stage_c')}, which is theirs")
    if isinstance(spec.target, LoRATarget):
        _adapters(spec.target, spec.models)
        if spec.target.tokens is not None:
            _tokens(spec.target.tokens, spec.models)


def predicted(models: ModelsSpec, part: Part) -> str:
    """What ``part`` (Stage B or C) of ``models`` answers: ``epsilon`` or ``v``."""
    from cascade_train.models.applied import read_settings

    for run in reversed(models.applied):
        settings = read_settings(Path(run.checkpoint))[1]
        if part in settings["parts"]:
            return str(settings.get("objective", "epsilon"))
    file = library.part_file(models, part)
    said = weights.read_header(Path(file.path))[1].get(weights.PREDICTION, "epsilon")
    return "v" if said == "v" else "epsilon"


def retaught(spec: RunSpec) -> str:
    """A warning where the run starts from models that answer something else than its objective; else ""."""
    part: Part = "stage_c" if isinstance(spec.target, LoRATarget) else spec.target.part
    fresh = isinstance(spec.target, FullTarget) and spec.target.init != "models"
    if fresh or part not in ("stage_b", "stage_c"):
        return ""
    theirs = predicted(spec.models, part)
    if theirs == spec.objective:
        return ""
    return (f"the models predict {theirs} and the objective is {spec.objective}: they draw noise until they "
            "have learned that anew, for which a LoRA seldom suffices")


def _adapters(target: LoRATarget, models: ModelsSpec) -> None:
    if not target.modules.strip():
        if target.tokens is None:
            raise CascadeError("the LoRA has no layers: its filter is empty",
                               fix="Use attn, or wire tokens to train alone", typed=("modules", ""))
        return
    if target.rank < 1:
        raise CascadeError(f"a LoRA of rank {target.rank}", fix="Use 1 or more")
    file = library.part_file(models, "stage_c")
    hit(_layers(file.path, file.content), target.modules)


def _tokens(spec: TokenSpec, models: ModelsSpec) -> None:
    file = library.part_file(models, "text")
    vocabulary, special = _words(file.path, file.content)
    if models.applied:
        from cascade_train.models.applied import read_settings

        settings = [read_settings(Path(run.checkpoint))[1] for run in models.applied]
        words = [word for each in settings for word in each.get("tokens", ()) if word["new"]]
        vocabulary = {**vocabulary, **{word["name"]: word["id"] for word in words}}
    found_entries(spec, vocabulary, special)


@lru_cache(maxsize=8)
def _layers(path: str, content: str) -> tuple[str, ...]:
    return tuple(layers_in(weights.read_header(Path(path))[0]))


@lru_cache(maxsize=8)
def _words(path: str, content: str) -> tuple[dict[str, int], frozenset[int]]:
    tokenizer = build.load_tokenizer(Path(path))
    return tokenizer.get_vocab(), frozenset(tokenizer.all_special_ids)
