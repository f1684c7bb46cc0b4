"""Official files and diffusers' network: every tensor of one has its place in the other."""

from __future__ import annotations

import pytest
import torch

from cascade_train.errors import CascadeError
from cascade_train.models import build, layouts, starts
from cascade_train.nano import widths

UNETS = ("stage_c", "stage_c_lite", "stage_b", "stage_b_lite")
OTHERS = (("stage_a", "stage_a"), ("effnet_encoder", "compressor"), ("previewer", "previewer"))


@pytest.mark.parametrize("name", UNETS)
def test_official_file_tells_its_own_network(name, layout):
    shapes = layout(name)
    part = name.removesuffix("_lite")
    assert layouts.stage_of(shapes) == part
    with torch.device("meta"):
        network = build.build(part, build.config_for(part, shapes))
    ours = layouts.to_native(network.state_dict())
    assert {key: list(value.shape) for key, value in ours.items()} == shapes


@pytest.mark.parametrize(("name", "part"), OTHERS)
def test_other_official_files_tell_their_modules(name, part, layout):
    shapes = layout(name)
    with torch.device("meta"):
        module = build.build(part, build.config_for(part, shapes))
    assert {key: list(value.shape) for key, value in module.state_dict().items()} == shapes


def test_known_numbers_of_the_official_networks(layout):
    """The facts as published, not as we derive them."""
    big = layouts.unet_config(layout("stage_c"))
    assert big["block_out_channels"] == [2048, 2048] and big["num_attention_heads"] == [32, 32]
    assert (big["down_num_layers_per_block"], big["up_num_layers_per_block"]) == ([8, 24], [24, 8])
    assert big["conditioning_dim"] == 2048 and big["patch_size"] == 1 and big["switch_level"] == [False]
    lite_b = layouts.unet_config(layout("stage_b_lite"))
    assert lite_b["block_out_channels"] == [320, 576, 1152, 1152]
    assert lite_b["num_attention_heads"] == [-1, -1, 18, 18]  # its second level has no attention block
    assert lite_b["down_num_layers_per_block"] == [2, 4, 14, 4]
    assert lite_b["up_num_layers_per_block"] == [4, 14, 4, 2]
    assert lite_b["up_blocks_repeat_mappers"] == [2, 2, 2, 2]
    assert lite_b["patch_size"] == 2 and lite_b["in_channels"] == 4


@pytest.mark.parametrize("part", ["stage_c", "stage_b"])
def test_there_and_back_is_the_same(part):
    network = build.build(part, widths.SMALLER[part])
    state = network.state_dict()
    native = layouts.to_native(state)
    assert any(key.endswith("attn.in_proj_weight") for key in native)
    assert not any(".to_q." in key or ".to_out." in key for key in native)
    back = layouts.to_diffusers(native)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], state[key]) for key in state)


def test_all_in_one_checkpoints_and_split_attention_are_read():
    state = build.build("stage_c", widths.SMALLER["stage_c"]).state_dict()
    split = {
        f"model.diffusion_model.{key}".replace(".attention.to_out.0", ".attention.attn.out_proj").replace(
            ".attention.to_", ".attention.attn.to_"
        ): value
        for key, value in state.items()
    }
    split["vae.something"] = torch.zeros(1)
    back = layouts.to_diffusers(split)
    assert back.keys() == state.keys() and all(torch.equal(back[key], state[key]) for key in state)


def test_a_nano_file_without_metadata_is_recognised_but_for_heads():
    """What shapes show is found; heads follow the rule of the official files."""
    state = starts.initial("stage_c", "random", "quick", 0, None).state_dict()
    shapes = {key: list(value.shape) for key, value in layouts.to_native(state).items()}
    found = layouts.unet_config(shapes)
    wanted = widths.SMALLER["stage_c"]
    told = (
        "block_out_channels",
        "down_num_layers_per_block",
        "up_num_layers_per_block",
        "clip_seq",
        "conditioning_dim",
        "block_types_per_layer",
        "switch_level",
        "clip_image_in_channels",
    )
    assert {key: found[key] for key in told} == {key: wanted[key] for key in told}


def test_wrong_files_are_named(layout):
    with pytest.raises(CascadeError, match="neither Stage C nor Stage B"):
        layouts.stage_of(layout("stage_a"))
    with pytest.raises(CascadeError, match="holds stage_b, not stage_c"):
        build.config_for("stage_c", layout("stage_b_lite"))
    with pytest.raises(CascadeError, match="does not hold stage_a"):
        build.config_for("stage_a", layout("previewer"))
    with pytest.raises(CascadeError, match="not a semantic compressor"):
        build.config_for("compressor", layout("previewer"))
