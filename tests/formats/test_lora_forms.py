"""LoRAs of every program that trains Stable Cascade: recognised, read, laid over, and written for another."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cascade_train.cli import main
from cascade_train.errors import CascadeError
from cascade_train.formats.lora import read_token
from cascade_train.formats.lora_forms import write_form
from cascade_train.jobs import lora_files, lora_info, loras
from cascade_train.models import build, library
from cascade_train.models.layouts import split_name
from cascade_train.models.loras import fit, kinds
from cascade_train.models.loras.change import Change, fused, kronecker, thirds
from cascade_train.models.loras.networks import Network, network_from, official
from cascade_train.models.loras.ranks import nearest, resized
from cascade_train.models.loras.reading import Changes, read
from cascade_train.models.loras.state import networks_of
from cascade_train.models.spec import ModelsSpec
from cascade_train.models.weights import read_header, read_tensors, write_tensors

LAYOUTS = Path(__file__).parent.parent / "models" / "layouts"
LAYER = "down_blocks.0.2.attention"
RANK, ALPHA = 3, 5.0


@pytest.fixture(scope="module")
def stage_c(tiny_folder: Path) -> Path:
    return tiny_folder / "stage_c.safetensors"


@pytest.fixture(scope="module")
def networks(tiny: ModelsSpec) -> tuple[Network, ...]:
    return networks_of(tiny)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.3


def plain_lora(
    network: Network, chosen: str = "attention", rank: int = RANK, alpha: float = ALPHA
) -> Changes:
    """A LoRA of the layers whose names hold ``chosen``."""
    layers = {}
    for number, (module, shape) in enumerate(network.shapes.items()):
        if chosen in module:
            down = drawn(rank, *shape[1:], seed=number)
            layers[network.part, module] = Change(alpha, down=down, up=drawn(shape[0], rank, seed=-number))
    return Changes(layers, (network,), metadata={})


def weight_of(models: ModelsSpec, module: str) -> Tensor:
    """The weight of a module of Stage C with all that is laid over it."""
    part: Any = library.part(models, "stage_c")
    weight: Tensor = part.get_submodule(module).weight
    return weight


def deltas(changes: Changes) -> dict[Any, Tensor]:
    return {place: change.delta() for place, change in changes.layers.items()}


def same(one: Changes, two: Changes, within: float = 1e-6) -> None:
    """Every layer's change is equal, measured on its largest number."""
    first, second = deltas(one), deltas(two)
    assert first.keys() == second.keys()
    for place, value in first.items():
        assert (value - second[place]).abs().max() <= within * max(1.0, float(value.abs().max())), place


# -- what a file is ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "names", "shape"),
    [
        ("Flux", ["lora_unet_double_blocks_0_img_attn_proj.lora_down.weight"], [16, 3072]),
        ("Flux", ["transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight"], [16, 3072]),
        ("Stable Diffusion 3", ["diffusion_model.joint_blocks.0.x_block.attn.qkv.lora_A.weight"], [16, 1536]),
        ("Wan", ["diffusion_model.blocks.0.self_attn.q.lora_A.weight"], [16, 5120]),
        (
            "Stable Diffusion 1.5",
            ["lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.lora_down.weight"],
            [16, 768],
        ),
        (
            "SDXL",
            ["lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k.lora_down.weight"],
            [16, 2048],
        ),
        ("SDXL", ["lora_te2_text_model_encoder_layers_0_mlp_fc1.lora_down.weight"], [16, 1280]),
        ("Stage B", ["lora_unet_down_blocks_2_2_attention_attn_to_q.lora_up.weight"], [1280, 16]),
        ("Stage B", ["lora_unet_down_blocks_2_0_channelwise_0.lora_down.weight"], [16, 1280]),
        ("CLIP-L", ["lora_te_text_model_encoder_layers_0_mlp_fc1.lora_down.weight"], [16, 768]),
        ("a kind that is not", ["lora_unet_down_blocks_0_2_attention_attn_to_q.oft_blocks"], [4, 8, 8]),
        (
            "Stage C",
            ["down_blocks.0.0.depthwise.weight", "clip_txt_mapper.weight", "clf.1.weight"],
            [2048, 1],
        ),
    ],
)
def test_a_lora_of_another_model_is_refused_by_what_it_is(
    tmp_path: Path, what: str, names: list[str], shape: list[int]
) -> None:
    path = tmp_path / "thing.safetensors"
    write_tensors(path, {name: torch.zeros(shape, dtype=torch.bfloat16) for name in names})
    with pytest.raises(CascadeError, match=f"holds .*{what}"):
        fit.check(path)
    assert main(["lora", "info", str(path)]) == 2


def test_a_lora_of_the_other_size_is_refused_by_its_size(tmp_path: Path, networks: Any) -> None:
    path = tmp_path / "large.safetensors"
    stem = "lora_unet_down_blocks_0_2_attention_attn_to_q"
    write_tensors(
        path,
        {f"{stem}.lora_down.weight": torch.zeros(1, 2048), f"{stem}.lora_up.weight": torch.zeros(2048, 1)},
    )
    with pytest.raises(CascadeError, match=r"one of the 3\.6B Stage C, and the models have"):
        fit.fitted(path, networks)
    assert fit.fitted(path, official("3.6B")).form == kinds.KOHYA
    assert lora_info.described(path)["for"] == "the 3.6B Stage C"


def test_leftovers_are_counted_and_named(tmp_path: Path, networks: Any, stage_c: Path) -> None:
    path = tmp_path / "mine.safetensors"
    write_form(path, plain_lora(networks[0]), "kohya")
    tensors = read_tensors(path)
    write_tensors(
        path, {**tensors, "lora_unet_down_blocks_0_99_channelwise_0.lora_down.weight": torch.zeros(1, 4)}
    )
    with pytest.raises(CascadeError, match=rf"1 of its {len(tensors) + 1} tensors .*down_blocks_0_99"):
        fit.fitted(path, networks)
    stem = "lora_unet_down_blocks_0_2_attention_attn_to_q"
    write_tensors(path, {key: value for key, value in tensors.items() if key != f"{stem}.lora_up.weight"})
    with pytest.raises(CascadeError, match=f"'{stem}' are not complete"):
        fit.fitted(path, networks)
    write_tensors(path, {**tensors, f"{stem}.diff_b": torch.zeros(8)})
    assert fit.fitted(path, networks).unused == (f"{stem}.diff_b",)
    assert lora_info.described(path, stage_c)["unused"] == [f"{stem}.diff_b"]
    write_tensors(
        path,
        {**tensors, f"{stem}.lora_up.weight": torch.full_like(tensors[f"{stem}.lora_up.weight"], torch.nan)},
    )
    with pytest.raises(CascadeError, match="not numbers"):
        read(path, networks)


@pytest.mark.parametrize(("size", "layout"), [("3.6B", "stage_c"), ("1B", "stage_c_lite")])
def test_the_official_sizes_are_those_of_the_official_headers(size: str, layout: str) -> None:
    written = json.loads((LAYOUTS / f"{layout}.json").read_text(encoding="utf-8"))
    header = {name: json.loads(shape) for shape, names in written.items() for name in names.split()}
    assert dict(network_from("stage_c", header).shapes) == dict(official(size)[0].shapes)


# -- other programs' names ----------------------------------------------------------------------------


def named(changes: Changes, name: Any, down: str, up: str, alpha: bool = True) -> dict[str, Tensor]:
    """``changes`` as another program writes them: ``name`` gives a layer's name of a module's."""
    out = {}
    for (part, module), change in changes.layers.items():
        assert change.down is not None and change.up is not None
        stem = name(part, module)
        out[stem + down], out[stem + up] = change.down, change.up
        if alpha:
            out[f"{stem}.alpha"] = torch.tensor(change.alpha)
    return out


def onetrainer(part: str, module: str) -> str:
    if part == "text":
        return f"clip_g.{module}"
    native = split_name(module)
    for number, letter in enumerate("qkv"):
        native = native.replace(f"attn.to_{letter}", f"attn.in_proj.{number}")
    return f"diffusion_model.{native}"


FORMS: dict[str, tuple[Any, str, str, bool]] = {
    kinds.OLD_ONETRAINER: (
        lambda part, module: (
            ("lora_prior_te_" if part == "text" else "lora_prior_unet_")
            + (module if part == "text" else split_name(module)).replace(".", "_")
        ),
        ".lora_down.weight",
        ".lora_up.weight",
        True,
    ),
    kinds.KOHYA: (
        lambda part, module: (
            ("lora_te_" if part == "text" else "lora_unet_")
            + (module if part == "text" else split_name(module)).replace(".", "_")
        ),
        ".lora_down.weight",
        ".lora_up.weight",
        True,
    ),
    kinds.ONETRAINER: (onetrainer, ".lora_A.weight", ".lora_B.weight", True),
    kinds.COMFYUI: (
        lambda part, module: (
            "text_encoders.clip_g.transformer." + module
            if part == "text"
            else "diffusion_model." + split_name(module)
        ),
        ".lora_A.weight",
        ".lora_B.weight",
        True,
    ),
    kinds.PEFT: (
        lambda part, module: ("text_encoder." if part == "text" else "prior.") + module,
        ".lora_A.weight",
        ".lora_B.weight",
        True,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_programs_names_are_read(tmp_path: Path, networks: Any, form: str) -> None:
    c, text = networks
    made = replace(plain_lora(c), networks=tuple(networks))
    also = plain_lora(text, "encoder.layers")
    made = replace(made, layers={**made.layers, **also.layers})
    path = tmp_path / "theirs.safetensors"
    name, down, up, alpha = FORMS[form]
    write_tensors(path, named(made, name, down, up, alpha))
    back = read(path, networks)
    assert back.form == form and back.kind == "LoRA"
    same(made, back, 0)
    assert {each.alpha for each in back.layers.values()} == {ALPHA} and back.ranks == (RANK,)


class Reference(nn.Module):
    """The reference's parametrisation of a weight, written from its description: scale 1 / rank."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.lora_down = nn.Parameter(drawn(rank, weight.shape[1], seed=weight.numel()))
        self.lora_up = nn.Parameter(drawn(weight.shape[0], rank, seed=weight.numel() + 1))
        self.rank = rank

    def forward(self, weight: Tensor) -> Tensor:
        kernel = (1,) * (weight.dim() - 2)
        return weight + (self.lora_up @ self.lora_down / self.rank).reshape(*weight.shape[:2], *kernel)


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """(in, out) of a linear layer's weight."""
    return shape[1], shape[0]


class Block(nn.Module):
    """One triple of Stage C by the reference's class layout, as far as its order of modules goes."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], stem: str) -> None:
        super().__init__()
        first, _, index = stem.rpartition(".")
        at = [f"{first}.{int(index) + n}" for n in range(3)]
        c = shapes[f"{at[0]}.channelwise.0"]
        width = shapes[f"{at[2]}.attention.to_q"][0]
        res, time, attend = nn.Module(), nn.Module(), nn.Module()
        res.depthwise = nn.Conv2d(width, width, 3, groups=width)
        res.channelwise = nn.Sequential(
            nn.Linear(c[1], c[0]), nn.GELU(), nn.Identity(), nn.Identity(), nn.Linear(c[0], width)
        )
        for name in ("mapper", "mapper_sca", "mapper_crp"):
            if f"{at[1]}.{name}" in shapes:
                setattr(time, name, nn.Linear(*_sides(shapes[f"{at[1]}.{name}"])))
        attend.attention = nn.Module()
        attend.attention.attn = nn.MultiheadAttention(width, 1)
        attend.kv_mapper = nn.Sequential(nn.SiLU(), nn.Linear(*_sides(shapes[f"{at[2]}.kv_mapper.1"])))
        for number, each in enumerate((res, time, attend)):
            self.add_module(str(int(index) + number), each)


def as_the_reference_does(
    network: Network, filters: list[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(the file, the change by native weight) of the reference's LoRA on blocks of ``network``'s sizes: by
    torch's own parametrisations and order of modules."""
    from torch.nn.utils import parametrize

    shapes = dict(network.shapes)
    root = nn.Module()
    for side in ("down_blocks", "up_blocks"):
        levels = nn.Module()
        root.add_module(side, levels)
        stems = [
            name.removesuffix(".depthwise")
            for name in shapes
            if name.startswith(side) and name.endswith(".depthwise")
        ]
        for stem in stems:
            level = stem.split(".")[1]
            if level not in dict(levels.named_children()):
                levels.add_module(level, nn.Module())
            for name, child in Block(shapes, stem).named_children():
                levels.get_submodule(level).add_module(name, child)
    before = {name: value.clone() for name, value in root.state_dict().items()}
    for name, module in list(root.named_modules()):
        if any(piece in name for piece in filters):
            for weight in ("weight", "in_proj_weight"):
                if isinstance(getattr(module, weight, None), nn.Parameter):
                    parametrize.register_parametrization(
                        module, weight, Reference(getattr(module, weight), RANK)
                    )
                    break
    found = [module for module in root.modules() if isinstance(module, Reference)]
    file = {}
    for number, each in enumerate(found):
        file[f"weights.{number}.lora_down"] = each.lora_down.detach()
        file[f"weights.{number}.lora_up"] = each.lora_up.detach()
    changed = {}
    for name in before:
        holder, _, leaf = name.rpartition(".")
        after = getattr(root.get_submodule(holder), leaf).detach()
        if not torch.equal(after, before[name]):
            changed[name] = after - before[name]
    return file, changed


@pytest.mark.parametrize(
    "filters", [[".attn"], [".attn", "channelwise"], [".attn", "depthwise", "kv_mapper"]]
)
def test_an_official_lora_counts_layers_in_the_references_order(
    tmp_path: Path, networks: Any, filters: list[str]
) -> None:
    file, changed = as_the_reference_does(networks[0], filters)
    path = tmp_path / "official.safetensors"
    write_tensors(
        path,
        {**file, "embeddings.embeddings": torch.zeros(0, 32), "embeddings.indices": torch.zeros(0).long()},
    )
    back = read(path, networks)
    assert back.form == "official"
    seen = 0
    for name, wanted in changed.items():
        module = name.removesuffix(".weight")
        if name.endswith("in_proj_weight"):
            stem = name.removesuffix(".attn.in_proj_weight")
            ours = torch.cat([back.layers["stage_c", f"{stem}.to_{letter}"].delta() for letter in "qkv"])
            seen += 3
        else:
            ours = back.layers["stage_c", module.replace(".attn.out_proj", ".to_out.0")].delta()
            seen += 1
        assert torch.allclose(ours, wanted.flatten(1), atol=1e-6), name
    assert seen == len(back.layers)


# -- exact forms ----------------------------------------------------------------------------------------


def test_a_fused_attention_splits_exactly_and_back() -> None:
    whole = Change(4.0, down=drawn(2, 8), up=drawn(24, 2, seed=1))
    parts = thirds(whole)
    assert torch.equal(torch.cat([each.delta() for each in parts]), whole.delta())
    again = fused(parts, 8, (8,))
    assert again.rank == 2 and torch.equal(again.delta(), whole.delta()), "equal downs keep the rank"
    different = [replace(each, down=drawn(2, 8, seed=n)) for n, each in enumerate(parts)]
    blocks = fused(different, 8, (8,))
    assert blocks.rank == 6
    assert torch.allclose(blocks.delta(), torch.cat([each.delta() for each in different]), atol=1e-6)
    missing = fused([parts[0], None, None], 8, (8,))
    assert torch.equal(missing.delta()[8:], torch.zeros(16, 8))


@pytest.mark.parametrize(
    ("one", "two", "rank"),
    [
        (["4,4"], ["8,2", "2,6"], 8),
        (["4,2"], ["8,2", "2,6"], 4),
        (["4,1", "1,4"], ["8,2", "2,6"], 2),
        (["2,2"], ["16,16"], 0),
    ],
)
def test_a_kronecker_product_is_a_lora_where_it_has_a_rank(one: list[str], two: list[str], rank: int) -> None:
    first, second = (
        [drawn(*map(int, each.split(",")), seed=n) for n, each in enumerate(s)] for s in (one, two)
    )
    made = kronecker(first, second, 3.0)
    whole = torch.kron(*(each[0] if len(each) == 1 else each[0] @ each[1] for each in (first, second)))
    dim = second[1].shape[0] if len(second) == 2 else None
    wanted = whole * (1 if dim is None else 3.0 / dim)
    assert made.rank == rank and torch.allclose(made.delta(), wanted, atol=1e-6)


def lycoris() -> Any:
    return pytest.importorskip(
        "lycoris.modules", reason="lycoris-lora is not installed: pip install lycoris-lora"
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LokrModule", {"factor": 4, "lora_dim": 2}),
        ("LokrModule", {"factor": 4, "lora_dim": 2, "decompose_both": True}),
        ("LokrModule", {"factor": 4, "lora_dim": 10_000, "full_matrix": True}),
        ("LohaModule", {"lora_dim": 2}),
        ("LohaModule", {"lora_dim": 4}),
        ("LokrModule", {"factor": 4, "lora_dim": 2, "weight_decompose": True, "wd_on_out": True}),
        ("LohaModule", {"lora_dim": 2, "weight_decompose": True, "wd_on_out": False}),
    ],
)
def test_lycoris_computes_the_same_weight(
    tmp_path: Path, tiny: ModelsSpec, kind: str, options: dict[str, Any]
) -> None:
    """SimpleTuner's files, made by the library that it trains with: the weight is the library's own."""
    module = getattr(lycoris(), kind)
    network: Any = library.part(tiny, "stage_c")
    name = f"{LAYER}.to_q"
    layer = nn.Linear(network.get_submodule(name).in_features, network.get_submodule(name).out_features)
    layer.weight.data = network.get_submodule(name).weight.detach().clone()
    torch.manual_seed(3)
    theirs = module("lycoris_down_blocks_0_2_attention_to_q", layer, multiplier=1.0, alpha=3.0, **options)
    for key, value in theirs.named_parameters():
        if "dora_scale" not in key:
            value.data = torch.randn_like(value) * 0.2
        else:
            value.data = value.data * 1.3
    theirs.eval()
    with torch.no_grad():  # what it trained with; the library's own merging applies alpha / rank twice
        wanted = (theirs(torch.eye(layer.in_features)) - layer.bias).t()
    saved = {
        f"lycoris_down_blocks_0_2_attention_to_q.{key}": value
        for key, value in theirs.state_dict().items()
        if "org" not in key
    }
    path = tmp_path / "simpletuner.safetensors"
    write_tensors(path, saved)
    found = read(path, networks_of(tiny))
    assert found.form == kinds.SIMPLETUNER and kind[:4].lower() in found.kind.lower()
    laid = loras.apply_file(tiny, path, 1.0, 1.0, "", host())
    ours = weight_of(laid, name)
    assert torch.allclose(ours, wanted, atol=2e-6), float((ours - wanted).abs().max())


def host() -> Any:
    from cascade_train.host.headless import HeadlessHost, Quiet, headless_folders

    return HeadlessHost(headless_folders(Path("output")), "cpu", Quiet())


def test_strength_goes_from_the_plain_weight_to_a_dora(tmp_path: Path, tiny: ModelsSpec) -> None:
    """W' = (1 − s)·W + s·m·(W + ΔW)/|W + ΔW|, by rows or by columns (Liu et al. 2024, eq. 5)."""
    c = networks_of(tiny)[0]
    name = f"{LAYER}.to_q"
    change = plain_lora(c, name).layers["stage_c", name]
    weight = weight_of(tiny, name)
    whole = weight + change.delta()
    for dim, length in ((1, drawn(weight.shape[0]).abs() + 0.5), (0, drawn(1, weight.shape[1]).abs() + 0.5)):
        made = Changes({("stage_c", name): replace(change, magnitude=length)}, (c,), metadata={})
        path = tmp_path / f"dora{dim}.safetensors"
        write_form(path, made, "kohya")
        dora = (
            length.view(-1, 1) * whole / whole.norm(dim=1, keepdim=True)
            if dim
            else length * whole / whole.norm(dim=0)
        )
        for strength in (0.4, 1.0, -1.5):
            laid = loras.apply_file(tiny, path, strength, 0.0, "", host())
            ours = weight_of(laid, name)
            assert torch.allclose(ours, (1 - strength) * weight + strength * dora, atol=1e-5)


# -- from form to form -----------------------------------------------------------------------------------

PAIRS = [*itertools.permutations(("comfyui", "kohya", "peft", "peft folder", "official"), 2)]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_round_trip_through_two_forms_keeps_every_layers_output(
    tmp_path: Path, networks: Any, stage_c: Path, first: str, second: str
) -> None:
    made = plain_lora(networks[0])
    one, two = (
        tmp_path / name if "folder" in form else tmp_path / f"{name}.safetensors"
        for name, form in (("a", first), ("b", second))
    )
    write_form(one, made, first.split()[0])
    assert (
        main(["convert-lora", str(one), str(two), "--to", second.split()[0], "--models", str(stage_c)]) == 0
    )
    back = read(two, networks)
    same(made, back)
    x = drawn(4, 512)
    for place, change in back.layers.items():
        inputs = x[:, : change.delta().shape[1]]
        ours, wanted = inputs @ change.delta().t(), inputs @ made.layers[place].delta().t()
        assert (ours - wanted).abs().max() <= 1e-6 * wanted.abs().max() + 1e-6
    if "official" not in (first, second) and "peft" not in (first, second):
        assert {each.alpha for each in back.layers.values()} == {ALPHA} and back.ranks == (RANK,)


@pytest.mark.parametrize(("first", "second"), itertools.permutations(("comfyui", "kohya", "peft folder"), 2))
def test_a_dora_keeps_its_weights_through_every_form_that_has_it(
    tmp_path: Path, tiny: ModelsSpec, stage_c: Path, first: str, second: str
) -> None:
    c = networks_of(tiny)[0]
    made = plain_lora(c)
    layers = {
        place: replace(each, magnitude=drawn(c.shapes[place[1]][0]).abs() + 0.5)
        for place, each in made.layers.items()
    }
    made = replace(made, layers=layers)
    one, two = (
        tmp_path / name if "folder" in form else tmp_path / f"{name}.safetensors"
        for name, form in (("a", first), ("b", second))
    )
    about = {"cascade_train.run": "of a run of ours"}
    write_form(one, made, first.split()[0], weight=lora_files.weight_in(stage_c), metadata=about)
    assert (
        main(["convert-lora", str(one), str(two), "--to", second.split()[0], "--models", str(stage_c)]) == 0
    )
    laid = [loras.apply_file(tiny, path, 0.7, 0.0, "", host()) for path in (one, two)]
    for (_, name), change in made.layers.items():
        plain = weight_of(tiny, name)
        whole = plain + change.delta()
        assert change.magnitude is not None
        wanted = torch.lerp(
            plain, change.magnitude.view(-1, 1) * whole / whole.norm(dim=1, keepdim=True), 0.7
        )
        for each in laid:
            assert torch.allclose(weight_of(each, name), wanted, atol=1e-5), name


def test_a_form_that_cannot_hold_a_change_says_so(
    tmp_path: Path, networks: Any, stage_c: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    c, text = networks
    made = plain_lora(c)
    place = next(iter(made.layers))
    dense = replace(made, layers={place: Change(dense=made.layers[place].delta())})
    path, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write_form(path, dense, "kohya")
    same(dense, read(path, networks), 0)
    for form, words in (("peft", "lora resize"), ("official", "lora resize")):
        assert main(["convert-lora", str(path), str(out), "--to", form, "--models", str(stage_c)]) == 2
        assert words in capsys.readouterr().err
    write_form(path, replace(plain_lora(text, "layers"), networks=tuple(networks)), "kohya")
    assert main(["convert-lora", str(path), str(out), "--to", "official", "--models", str(stage_c)]) == 2
    assert "text encoder" in capsys.readouterr().err
    assert main(["convert-lora", str(path), str(path), "--to", "peft"]) == 2
    assert main(["convert-lora", str(path), str(tmp_path / "b"), "--to", "kohya"]) == 2
    assert "does not end in .safetensors" in capsys.readouterr().err
    assert not out.exists()


# -- words -----------------------------------------------------------------------------------------------


WORDS = "[thing] = ^(a|the)</w>$"


@pytest.fixture(scope="module")
def text(tiny_folder: Path) -> Path:
    return tiny_folder / "text"


def test_an_official_loras_words_are_added_to_the_table_and_become_embeddings(
    tmp_path: Path, tiny: ModelsSpec, networks: Any, stage_c: Path, text: Path
) -> None:
    """The reference adds its rows to those of the table; a new word's began as the mean of what it names."""
    encoder: Any = library.part(tiny, "text")
    table = encoder.text_model.embeddings.token_embedding.weight
    vocabulary = encoder.tokenizer.get_vocab()
    old, new = vocabulary["red</w>"], max(vocabulary.values()) + 1
    rows = drawn(2, table.shape[1])
    start = table[[vocabulary["a</w>"], vocabulary["the</w>"]]].mean(dim=0)
    wanted = {"thing": rows[0] + start, "red": rows[1] + table[old]}
    path, out = tmp_path / "official.safetensors", tmp_path / "mine.safetensors"
    write_form(path, plain_lora(networks[0]), "official")
    embeddings = {"embeddings.embeddings": rows, "embeddings.indices": torch.tensor([new, old])}
    write_tensors(path, {**read_tensors(path), **embeddings})

    laid: Any = library.part(loras.apply_file(tiny, path, 1.0, 1.0, WORDS, host()), "text")
    taught = laid.text_model.embeddings.token_embedding.weight
    assert laid.tokenizer("[thing]").input_ids[1] == new
    assert torch.allclose(taught[new], wanted["thing"]) and torch.allclose(taught[old], wanted["red"])

    common = ["--models", str(stage_c), "--text", str(text), "--word", WORDS]
    assert main(["convert-lora", str(path), str(out), "--to", "comfyui", *common]) == 0
    for name, row in wanted.items():
        assert torch.allclose(read_token(tmp_path / f"mine-{name}.safetensors")[1], row[None], atol=1e-6)
    same(read(path, networks), read(out, networks))


def test_onetrainers_words_are_laid_over_and_go_to_an_official_file(
    tmp_path: Path,
    tiny: ModelsSpec,
    networks: Any,
    stage_c: Path,
    text: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    encoder: Any = library.part(tiny, "text")
    table = encoder.text_model.embeddings.token_embedding.weight
    vocabulary = encoder.tokenizer.get_vocab()
    rows = drawn(2, table.shape[1])
    path, out = tmp_path / "onetrainer.safetensors", tmp_path / "official.safetensors"
    name, down, up, alpha = FORMS[kinds.ONETRAINER]
    words = {"bundle_emb.<thing>.clip_g": rows[:1], "bundle_emb.other.clip_g": rows[1:]}
    write_tensors(path, {**named(plain_lora(networks[0]), name, down, up, alpha), **words})
    laid: Any = library.part(loras.apply_file(tiny, path, 1.0, 1.0, "", host()), "text")
    ids = laid.tokenizer("[thing] [other]").input_ids[1:3]
    assert torch.equal(laid.text_model.embeddings.token_embedding.weight[ids], rows)

    common = ["--to", "official", "--models", str(stage_c), "--text", str(text)]
    assert main(["convert-lora", str(path), str(out), *common, "--word", WORDS]) == 0
    assert "1 words are left out" in capsys.readouterr().err
    made = read_tensors(out)
    start = table[[vocabulary["a</w>"], vocabulary["the</w>"]]].mean(dim=0)
    assert made["embeddings.indices"].tolist() == [max(vocabulary.values()) + 1]
    assert torch.allclose(made["embeddings.embeddings"][0] + start, rows[0], atol=1e-6)
    assert main(["convert-lora", str(path), str(out), *common, "--word", "[nothing] = a"]) == 2
    assert "has no word [nothing]" in capsys.readouterr().err


def test_a_peft_folders_alphas_are_followed(tmp_path: Path, networks: Any) -> None:
    """Rank-stabilised ones, one layer's own; an expression that is not a name is refused, not guessed."""
    made = plain_lora(networks[0])
    path = tmp_path / "adapter"
    write_form(path, made, "peft")
    config = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
    first, *_ = (module for _, module in made.layers)
    config |= {"use_rslora": True, "alpha_pattern": {f"^{first}": 2.0}}
    (path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    for (_, module), change in read(path, networks).layers.items():
        assert change.scale == pytest.approx((2.0 if module == first else ALPHA) / RANK**0.5)
    config["alpha_pattern"] = {".*(to_q)+": 2.0}
    (path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CascadeError, match=r"expression '\.\*\(to_q\)\+'"):
        read(path, networks)


# -- commands ----------------------------------------------------------------------------------------------


def test_info_tells_what_a_lora_is(
    tmp_path: Path, networks: Any, stage_c: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.safetensors"
    write_form(path, plain_lora(networks[0]), "comfyui", metadata={"cascade_train.step": "300"})
    assert main(["lora", "info", str(path), "--models", str(stage_c), "--json"]) == 0
    about = json.loads(capsys.readouterr().out.splitlines()[-1])
    layers = sum(".attention." in name for name in networks[0].shapes)
    assert about["layers"] == {"stage_c": {"attention": layers}}
    assert about["ranks"] == {str(RANK): layers} and about["alphas"] == {"5": layers}
    assert about["kind"] == "LoRA" and about["metadata"]["cascade_train.step"] == "300"


def test_merging_and_extracting_are_each_others_way_back(
    tmp_path: Path, networks: Any, stage_c: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = plain_lora(networks[0])
    lora, tuned, back = (tmp_path / f"{name}.safetensors" for name in ("lora", "tuned", "back"))
    write_form(lora, made, "comfyui")
    assert main(["lora", "merge", str(stage_c), str(lora), str(tuned), "--strength", "0.5"]) == 0
    plain, merged = build.load("stage_c", stage_c), build.load("stage_c", tuned)
    assert read_header(tuned)[0] == read_header(stage_c)[0], "the layout is as it was"
    for name, value in plain.state_dict().items():
        change = made.layers.get(("stage_c", name.removesuffix(".weight")))
        wanted = value if change is None else value + 0.5 * change.delta().reshape(value.shape)
        assert torch.allclose(merged.state_dict()[name], wanted, atol=1e-6), name
    whole, all_of_it = tmp_path / "checkpoint.safetensors", tmp_path / "checkpoint-merged.safetensors"
    stored = {f"model.diffusion_model.{name}": value for name, value in read_tensors(stage_c).items()}
    write_tensors(whole, {**stored, "vae.anything.weight": drawn(4, 4)})
    assert main(["lora", "merge", str(whole), str(lora), str(all_of_it), "--strength", "0.5"]) == 0
    checkpoint, alone = read_tensors(all_of_it), read_tensors(tuned)
    assert torch.equal(checkpoint.pop("vae.anything.weight"), drawn(4, 4))
    assert checkpoint.keys() == stored.keys()
    for name, value in alone.items():
        assert torch.equal(checkpoint[f"model.diffusion_model.{name}"], value), name
    capsys.readouterr()
    assert main(["lora", "extract", str(stage_c), str(tuned), str(back), "--rank", str(RANK), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["kept"] > 0.999 and told["rank"] == RANK
    halved = {place: replace(each, alpha=each.alpha / 2) for place, each in made.layers.items()}
    same(replace(made, layers=halved), read(back, networks), 1e-4)
    assert main(["lora", "extract", str(stage_c), str(stage_c), str(back), "--rank", "1"]) == 2
    assert "are equal" in capsys.readouterr().err


def test_resizing_keeps_the_nearest_change_and_says_how_much(
    tmp_path: Path, networks: Any, stage_c: Path
) -> None:
    change = Change(6.0, down=drawn(6, 40), up=drawn(30, 6, seed=1))
    values = torch.linalg.svdvals(change.delta())
    made, kept = resized(change, 2)
    assert made.rank == 2 and made.alpha == 2
    assert kept.share == pytest.approx(float(values[:2].square().sum() / values.square().sum()), rel=1e-5)
    error = torch.linalg.matrix_norm(made.delta() - change.delta())
    assert error == pytest.approx(float(values[2:].square().sum().sqrt()), rel=1e-4), (
        "Eckart and Young's bound"
    )
    whole, all_of_it = resized(change, 64)
    assert all_of_it.share == pytest.approx(1.0) and torch.allclose(whole.delta(), change.delta(), atol=1e-5)
    large = drawn(1100, 8) @ drawn(8, 1200, seed=5)
    found, kept = nearest(large, 8, (1200,))
    assert kept.share > 0.9999 and torch.allclose(found.delta(), large, atol=1e-3)
    path, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write_form(path, plain_lora(networks[0], rank=6), "official")
    assert main(["lora", "resize", str(path), str(out), "--rank", "2", "--models", str(stage_c)]) == 0
    assert read(out, networks).ranks == (2,)


def test_help_of_these_commands_loads_no_torch() -> None:
    code = (
        "import sys; from cascade_train.cli import main\n"
        "for words in (['convert-lora', '--help'], ['lora', '--help'], ['lora', 'merge', '--help']):\n"
        "    assert main(words) == 0\n"
        "assert not {'torch', 'safetensors', 'diffusers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
