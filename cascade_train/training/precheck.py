"""What can be said against a run before anything is loaded: its settings, its layers, its words.

Layers are looked up in the header of Stage C's file, words in the tokenizer's files. Imports no torch.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

from cascade_train.data.buckets import Buckets
from cascade_train.errors import CascadeError
from cascade_train.models import clip, library, reading, weights
from cascade_train.models.spec import ModelsSpec, Part, PartFile
from cascade_train.training.layers import chosen_layers, layers_in
from cascade_train.training.spec import FullTarget, LoRATarget, RunSpec, TokenSpec, splits
from cascade_train.training.tokens import found_entries


def examine(spec: RunSpec) -> str:
    """A warning that a person should see before training, or "".

    Raises:
        CascadeError: settings that cannot train, a name that no layer of the models has, an expression
            that finds no word of theirs.
    """
    for what, value, low in (
        ("batch size", spec.batch_size, 1),
        ("accumulation", spec.accumulation, 1),
        ("planned total of steps", spec.total_steps, 1),
    ):
        if value < low:
            raise CascadeError(f"the {what} is {value}", fix=f"Use {low} or more")
    if spec.accumulation > 1 and not splits(spec.target):
        raise CascadeError(
            f"accumulation {spec.accumulation}: this part has batch norms, which see a whole batch at a time",
            fix="Use accumulation 1, and a smaller batch where memory is short",
        )
    for what, share in (("caption dropout", spec.caption_dropout), ("image share", spec.image_share)):
        if not 0 <= share <= 1:
            raise CascadeError(f"the {what} is {share}", fix="Use a share from 0 to 1")
    if spec.optimizer.learning_rate < 0:
        raise CascadeError(f"the learning rate is {spec.optimizer.learning_rate}", fix="Use 0 or more")
    if spec.optimizer.name == "adamw8bit":
        _installed("bitsandbytes", "optim", "the optimizer adamw8bit")
    if not 0 <= spec.optimizer.ema < 1:
        raise CascadeError(f"the EMA decay is {spec.optimizer.ema}", fix="Use 0 (none) to just under 1")
    _sizes(spec)
    theirs = _theirs(spec)
    other = theirs != spec.objective
    if isinstance(spec.target, LoRATarget):
        if other and not spec.target.modules.strip():
            raise CascadeError(
                f"tokens alone cannot make these models predict {spec.objective}",
                fix=f"Choose the objective {theirs}, which is theirs",
            )
        _adapters(spec.target, spec.models)
        if spec.target.tokens is not None:
            _tokens(spec.target.tokens, spec.models)
    warnings = []
    if other:
        warnings.append(
            f"the models predict {theirs} and the objective is {spec.objective}: they draw noise until they "
            "have learned that anew, for which a LoRA seldom suffices"
        )
    if isinstance(spec.target, LoRATarget) and spec.target.start is not None:
        warnings += start_left_out(spec.target, spec.models)
    return "; ".join(warnings)


def _installed(library_name: str, extra: str, what: str) -> None:
    if importlib.util.find_spec(library_name) is None:
        raise CascadeError(
            f"{what} needs {library_name}, which is not installed",
            fix=f"pip install 'cascade-train[{extra}]' into this Python, or choose another",
        )


def _sizes(spec: RunSpec) -> None:
    part = "stage_c" if isinstance(spec.target, LoRATarget) else spec.target.part
    if part not in ("stage_b", "stage_c"):
        return
    sizes = library.geometry(spec.models)
    least = sizes.smallest_grid * sizes.latent_factor if part == "stage_c" else sizes.smallest_side
    buckets = Buckets(spec.dataset.buckets, sizes.size_multiple, sizes.native_side)
    for width, height in buckets.sizes:
        if min(width, height) < least:
            raise CascadeError(
                f"a bucket of {width}×{height} pixels is too small for these models",
                fix=f"The smallest side that they can be trained at is {least}",
                typed=("size", str(spec.dataset.buckets.size)),
            )


def _theirs(spec: RunSpec) -> str:
    """What the part that is trained answers at the start; the run's objective where that is open."""
    part: Part = "stage_c" if isinstance(spec.target, LoRATarget) else spec.target.part
    fresh = isinstance(spec.target, FullTarget) and spec.target.init != "models"
    return spec.objective if fresh or part not in ("stage_b", "stage_c") else _predicted(spec.models, part)


def _predicted(models: ModelsSpec, part: Part) -> str:
    """What ``part`` (Stage B or C) of ``models`` answers: ``epsilon`` or ``v``."""
    for settings in reversed(_applied(models)):
        if part in settings["parts"]:
            return str(settings.get("objective", "epsilon"))
    return weights.prediction(reading.part_headers(library.part_file(models, part))[1])


def _adapters(target: LoRATarget, models: ModelsSpec) -> None:
    if not target.modules.strip():
        if target.tokens is None:
            raise CascadeError(
                "the LoRA has no layers: its filter is empty",
                fix="Use attn, or wire tokens to train alone",
                typed=("modules", ""),
            )
        return
    if target.rank < 1:
        raise CascadeError(f"a LoRA of rank {target.rank}", fix="Use 1 or more")
    file = library.part_file(models, "stage_c")
    chosen_layers(_layers(file), target.modules)


def start_left_out(target: LoRATarget, models: ModelsSpec) -> list[str]:
    """What of the file that ``target`` starts from it does not train, in words; from headers alone.

    Raises:
        CascadeError: the file does not fit the models, or the target: a rank above its own, layers that it
            leaves out, DoRA where it is none.
    """
    from cascade_train.models.loras.fit import fitted, header_of, kind_of_layer
    from cascade_train.models.loras.state import networks_of

    assert target.start is not None
    path = Path(target.start.path)
    found, shapes = fitted(path, networks_of(models)), header_of(path)[0]
    entries = [entry for entry in found.entries if entry.part == "stage_c"]
    if not entries or not target.modules.strip():
        what = "no layer of Stage C" if not entries else "layers, and the target trains none"
        raise CascadeError(f"the LoRA to start from changes {what}", where=str(path), fix="Choose another")
    if target.alpha == 0:
        raise CascadeError("an alpha of 0 leaves nothing of the LoRA to start from", fix="Use the rank")
    rank = max((int(shapes[entry.keys["down"]][0]) for entry in entries if "down" in entry.keys), default=0)
    if rank > target.rank:
        raise CascadeError(
            f"the LoRA to start from has rank {rank}, and the target {target.rank}",
            where=str(path),
            fix=f"Use a rank of {rank} or more, or make the file smaller (cascade-train lora resize)",
            typed=("rank", str(target.rank)),
        )
    if target.kind == "lora" and any("magnitude" in entry.keys for entry in entries):
        raise CascadeError("the LoRA to start from is a DoRA", where=str(path), fix="Choose the kind dora")
    layers = [module for entry in entries for module in entry.layer]
    chosen = chosen_layers(_layers(library.part_file(models, "stage_c")), target.modules)
    missing = [module for module in layers if module not in set(chosen)]
    if missing:
        kinds = dict.fromkeys(kind_of_layer(module).replace("attention", "attn") for module in layers)
        raise CascadeError(
            f"the LoRA to start from changes {len(missing)} layers that '{target.modules}' leaves out, such "
            f"as {missing[0]}",
            where=str(path),
            fix=f"Use the filter '{', '.join(kinds)}'",
            typed=("modules", target.modules),
        )
    rest = [f"{count} layers of the text encoder"] if (count := len(found.entries) - len(entries)) else []
    rest += ["words"] if found.embeddings else []
    return (
        [
            f"the LoRA to start from also has {' and '.join(rest)}, which are left out: lay them over the "
            "models with Load LoRA, at a strength of 0 for Stage C"
        ]
        if rest
        else []
    )


def _tokens(spec: TokenSpec, models: ModelsSpec) -> None:
    file = library.part_file(models, "text")
    vocabulary, special = _words(file.path, file.content)
    words = [word for each in _applied(models) for word in each.get("tokens", ()) if word["new"]]
    vocabulary = {**vocabulary, **{word["name"]: word["id"] for word in words}}
    found_entries(spec, vocabulary, special)


def _applied(models: ModelsSpec) -> list[dict[str, Any]]:
    """The settings of the runs laid over ``models``, the first one first."""
    if not models.applied:
        return []
    from cascade_train.models.trained import kind_and_settings

    return [kind_and_settings(run)[1] for run in models.applied]


@lru_cache(maxsize=8)
def _layers(file: PartFile) -> tuple[str, ...]:
    return tuple(layers_in(reading.part_headers(file)[0]))


@lru_cache(maxsize=8)
def _words(path: str, content: str) -> tuple[dict[str, int], frozenset[int]]:
    tokenizer = clip.load_tokenizer(Path(path))
    return tokenizer.get_vocab(), frozenset(tokenizer.all_special_ids)
