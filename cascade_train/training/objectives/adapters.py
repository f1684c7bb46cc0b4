"""LoRA layers by peft on Stage C, and trainable rows of a text embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from cascade_train.errors import CascadeError
from cascade_train.models.spec import ModelsSpec
from cascade_train.training.layers import chosen_layers
from cascade_train.training.objectives.started import start_adapters
from cascade_train.training.spec import LoRATarget
from cascade_train.training.tokens import Row

ADAPTER = "default"
"""peft's name for the adapter that is trained."""


def layers_of(unet: nn.Module) -> list[str]:
    """The names of the linear and (ungrouped) convolution layers."""
    return [
        name
        for name, module in unet.named_modules()
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1)
    ]


def add_lora(unet: nn.Module, target: LoRATarget, seed: int, models: ModelsSpec | None = None) -> None:
    """Inject adapters of ``target`` into ``unet`` (on the CPU) in place; they alone need gradients, in fp32.

    Their start is a function of ``seed`` alone, whatever device follows; up matrices are zero, so the network
    first does as before. Where the target starts from a file it first does as with that file, which is one
    for ``models``.
    """
    names = chosen_layers(layers_of(unet), target.modules)
    if target.kind == "dora":
        # one after the other: the weight of a compact layer is worked out at each look
        empty = [name for name in names if not _weight(unet, name).flatten(1).any(dim=1).all()]
        if empty:
            raise CascadeError(
                f"DoRA cannot train '{empty[0]}': some of its rows are all zero",
                fix="Use a plain LoRA, or leave that layer out",
            )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
        inject_lora(unet, target, names)
    for name, parameter in unet.named_parameters():
        is_adapter = ".lora_" in name
        parameter.requires_grad_(is_adapter)
        if is_adapter:
            parameter.data = parameter.data.float()
    if target.start is not None and models is not None:
        start_adapters(unet, target, models, ADAPTER)


def _weight(unet: nn.Module, name: str) -> Tensor:
    return unet.get_submodule(name).weight  # type: ignore[return-value]


def inject_lora(unet: nn.Module, target: LoRATarget, names: list[str]) -> None:
    """Put adapters of ``target`` beside the layers ``names`` of ``unet``, which may lie on ``meta``."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=target.rank,
        lora_alpha=target.alpha,  # type: ignore[arg-type]
        target_modules=names,
        use_dora=target.kind == "dora",
        lora_dropout=0.0,
        bias="none",
    )
    inject_adapter_in_model(config, unet, adapter_name=ADAPTER)


def adapter_tensors(weights: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Of ``weights`` by checkpoint name the adapters of ``part``, without peft's adapter name."""
    return {
        name.replace(f".{ADAPTER}", ""): value
        for name, value in weights.items()
        if name.startswith(part + ".") and ".lora_" in name
    }


class RowEmbedding(nn.Module):
    """An embedding of which only some rows are trained.

    The trained rows are a parameter of their own, (n, D) fp32, that stands in for those of the frozen table;
    so no optimizer, weight decay included, can move another row.
    """

    def __init__(self, table: nn.Embedding, rows: Sequence[Row], values: Tensor) -> None:
        super().__init__()
        weight = table.weight.detach()
        slot = torch.full((len(weight),), -1, dtype=torch.long, device=weight.device)
        slot[[row.id for row in rows]] = torch.arange(len(rows), device=weight.device)
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("slot", slot, persistent=False)
        self.rows = nn.Parameter(values.to(weight.device, torch.float32).clone())

    def forward(self, ids: Tensor) -> Tensor:
        """Embeddings (B, L, D) of token ids (B, L), in the table's dtype."""
        fixed = nn.functional.embedding(ids, self.weight)  # type: ignore[arg-type]
        slots = self.slot[ids]  # type: ignore[index]
        trained = nn.functional.embedding(slots.clamp(min=0), self.rows).to(fixed)
        return torch.where((slots >= 0).unsqueeze(-1), trained, fixed)
