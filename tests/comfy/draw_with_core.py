"""Draws with ComfyUI's own networks, LoRA loader, nodes and samplers, on noise that it is given.

    python draw_with_core.py COMFYUI FOLDER

FOLDER holds ``cases.json`` (see `test_same_latents`), ``given.safetensors`` with conditions and noise, and
the files that the cases name. Writes ``drawn.safetensors``, a tensor for each case.
"""

import json
import sys
from pathlib import Path

comfyui, folder = sys.argv[1], Path(sys.argv[2])
sys.argv = [sys.argv[0], "--cpu", "--force-fp32"]
sys.path.insert(0, comfyui)

import torch  # noqa: E402

torch.set_num_threads(1)
import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()
import comfy.k_diffusion.sampling  # noqa: E402
import comfy.model_patcher  # noqa: E402
import comfy.sample  # noqa: E402
import comfy.samplers  # noqa: E402
import comfy.sd  # noqa: E402
import comfy.supported_models  # noqa: E402
import comfy.utils  # noqa: E402
from comfy_extras.nodes_model_advanced import ModelSamplingStableCascade, RescaleCFG  # noqa: E402
from comfy_extras.nodes_stable_cascade import StableCascade_StageB_Conditioning  # noqa: E402

given = comfy.utils.load_torch_file(str(folder / "given.safetensors"))
told = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
drawn: dict[str, torch.Tensor] = {}


def network(stage):
    """A model of core's, from a file, as its loader makes it; only how deep it is, it cannot find out."""
    about = told["networks"][stage]
    kind = getattr(comfy.supported_models, f"Stable_Cascade_{stage.upper()}")
    config = kind({"stable_cascade_stage": stage, **about["config"]})
    config.set_inference_dtype(torch.float32, None)
    tensors = comfy.utils.load_torch_file(str(folder / about["file"]))
    expected = set(config.process_unet_state_dict(dict(tensors)))
    model = config.get_model(tensors, "", device="cpu")
    missing = expected ^ set(model.diffusion_model.state_dict())
    assert not missing, sorted(missing)[:5]
    model.load_model_weights(tensors, "")
    cpu = torch.device("cpu")
    return comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)


def condition(side, stage, case):
    """What core's text encoder hands on; for Stage B's positive also what Stage C has drawn."""
    made = [[given[f"hidden.{side}"], {"pooled_output": given[f"pooled.{side}"]}]]
    if stage == "b" and side == "positive":
        made = StableCascade_StageB_Conditioning.execute(made, {"samples": given["stage_c"]}).result[0]
    return made


for stage in "cb":
    base = network(stage)
    for case in (each for each in told["cases"] if each["stage"] == stage):
        model = base
        if case["lora"]:
            lora = comfy.utils.load_torch_file(str(folder / case["lora"]))
            model, _ = comfy.sd.load_lora_for_models(model, None, lora, case["strength"], 0.0)
        if case["shift"] is not None:
            (model,) = ModelSamplingStableCascade().patch(model, case["shift"])
        if case["rescale"]:
            (model,) = RescaleCFG().patch(model, case["rescale"])
        noise, fresh = given[f"noise.{stage}"], iter(given[f"fresh.{stage}"])
        options = {"noise_sampler": lambda *_, fresh=fresh: next(fresh)} if case["sampler"] == "ddpm" else {}
        function = getattr(comfy.k_diffusion.sampling, f"sample_{case['sampler']}")
        sigmas = comfy.samplers.calculate_sigmas(
            model.get_model_object("model_sampling"), case["scheduler"], case["steps"]
        )
        drawn[case["name"]] = comfy.sample.sample_custom(
            model,
            noise,
            case["cfg"],
            comfy.samplers.KSAMPLER(function, extra_options=options),
            sigmas,
            condition("positive", stage, case),
            condition("negative", stage, case),
            torch.zeros_like(noise),
            disable_pbar=True,
            seed=0,
        ).contiguous()
    del base, model

comfy.utils.save_torch_file(drawn, str(folder / "drawn.safetensors"))
