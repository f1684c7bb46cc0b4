"""Writes the help pages that ComfyUI shows for each node: ``python tests/nodes/make_help.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent.parent / "web" / "docs"

MORE: dict[str, str] = {
    "CascadeLoadStableCascade": """\
Nothing is loaded by this node itself: each part is read when something needs it, and kept.

**nano** comes with the pack. It has the architecture of Stable Cascade at small widths, draws 64×64 \
pictures of simple shapes, and trains on any CPU: good for trying a workflow before it goes to the large \
models.

**files** looks in ComfyUI's model folders, for the official names unless others are chosen:

| part | folder | official file |
|---|---|---|
| Stage C | `diffusion_models` or `unet` | `stage_c_bf16.safetensors`, lite: `stage_c_lite_bf16.safetensors` |
| Stage B | `diffusion_models` or `unet` | `stage_b_bf16.safetensors`, lite: `stage_b_lite_bf16.safetensors` |
| Stage A | `vae` | `stage_a.safetensors` |
| compressor | `vae` | `effnet_encoder.safetensors` |
| previewer | `vae` | `previewer.safetensors` |
| text encoder | `text_encoders` | a folder in Hugging Face layout, `stable-cascade/text_encoder` |
| image encoder | `clip_vision` | a folder in Hugging Face layout, `stable-cascade/image_encoder` |

Only `.safetensors` files are read.""",
    "CascadeImageFolder": """\
Captions are text files of the same name (`cat.png`, `cat.txt`), or rows of a `metadata.jsonl`, `.csv` \
or `.parquet`. *Caption Options* knows other ways, *Aspect Buckets* sizes and crops. Damaged pictures \
are left out and named.""",
    "CascadeWebDataset": """\
A shard is a tar with members `0000.jpg`, `0000.txt`, `0000.json`, … Shards on this machine are indexed \
once and then read at random. Remote shards need `pip install cascade-train[remote]`.""",
    "CascadeDatasetFromImages": """\
Anything that makes an IMAGE can be trained on: loaded pictures, pictures of another model, crops.""",
    "CascadeFilterSamples": """\
Expressions see the metadata's fields and `width`, `height`, `aspect`, `file_size`, `file_name`, the \
first `caption` and the list `captions`, and what is measured from the pixels: `sharpness` (some 10 for a \
blurred photograph, hundreds for a sharp one) and `brightness` (0 to 1). Each picture is decoded for that \
once ever. They are evaluated by a small safe evaluator: arithmetic, comparisons, `contains`, \
`and`/`or`/`not`, a few functions, nothing else.""",
    "CascadeCombineDatasets": """\
Repeats multiply a small set; shares fix how the sets are mixed whatever their sizes.""",
    "CascadeCaptionOptions": """\
To train a subject with one sentence for all pictures, choose `fixed` as source and write `a photo of \
[mycat]`, with `[mycat]` in *Train Tokens*.""",
    "CascadeAspectBuckets": """\
Full-size models are trained at 768 pixels, whose 24×24 latents are what 1024 pixels are sampled at. \
Encoding 1024 pixels would give 32×32, a grid the model does not draw at.""",
    "CascadeCacheLatents": """\
Caches lie in the cache folder, named by the pictures' content and the encoders', so a changed caption \
or model never meets old data. `cascade-train cache ls` shows them, `cascade-train cache prune` removes \
what is not used.""",
    "CascadeDatasetPreview": """\
Look here before training for hours: the crops, captions and buckets are exactly those of a run with \
this seed.""",
    "CascadeLoRATarget": """\
A LoRA learns with little memory and is exported as a small file.

The filter `attn` adapts the attention layers, where text meets picture: enough for styles and many \
subjects. A new shape or a face is learned sooner with `attn, channelwise`. Names are those of ComfyUI \
and of diffusers.""",
    "CascadeFullStageC": """\
Keeps the optimizer's state of every weight: about 16 bytes for each of Stage C's, 57 GB for the 3.6B \
model and 16 GB for the lite one.""",
    "CascadeTrainTokens": """\
A token is a word of the text encoder with its own embedding. Write it in captions and prompts exactly \
as here, with brackets: `a photo of [concept]`.

It starts as the mean of the words that the expression finds: choose words near the concept. Expressions \
are searched in the vocabulary, whose words end in `</w>`: `^cat</w>$` is the word cat, \
`^(cat|dog)</w>$` the mean of two.

*Export Run* writes each token as an embedding file beside the LoRA; in ComfyUI put it into \
`models/embeddings`.""",
    "CascadeOptimizer": """\
Good starts: a LoRA on full-size models 1e-4, a token 1e-3 to 1e-2 (it has its own rate in *Train \
Tokens*), nano 1e-3 and more. A short warm-up (10 to 50 steps) costs nothing.""",
    "CascadeTrainingRun": """\
A run is named by everything that determines its weights. Its folder, `output/cascade/runs/<name>`, \
holds `run.json` (the settings), `metrics.jsonl`, `checkpoints`, `samples` and `exports`. Queueing the \
same graph again finds it there and trains nothing twice; changing a setting begins another run and \
leaves the first as it is.

Memory: lower `batch_size` or raise `accumulation`, which changes no result beyond rounding.""",
    "CascadeTrainSteps": """\
Blocks may follow each other, branch, and be looked at in any order. 100 + 100 steps are the same as \
200. Changing a block trains that block and those after it again, from exactly the state before it.

Interrupting saves first; queue again to go on.

While it trains the node shows small pictures, drawn with the weights of the moment from always the same \
noise for up to four captions of the dataset, and the loss under them. They need the previewer; full-size \
models without its file show the loss alone.""",
    "CascadeTrainAndValidate": """\
The same as a chain of *Train Steps* and *Validate*, without the boxes.""",
    "CascadeValidate": """\
Wire a run to see it as it stands, or models to see them untrained. Grids of a run are also kept in its \
folder, under `samples`.""",
    "CascadeCompareGrids": """\
Pictures keep their size. Batches become a block of their own.""",
    "CascadeApplyRun": """\
The result can be wired wherever models go: to sampling, to another run, to export.""",
    "CascadeExportRun": """\
**ComfyUI**: one `.safetensors` with the names ComfyUI's LoRA loaders know. With a file name such as \
`loras/zorp` core's *Load LoRA* lists it; or wire `lora` into core's *Load LoRA Model*. Full weights \
are written in Stable Cascade's own layout. **diffusers**: a folder that \
`peft.PeftModel.from_pretrained(unet, folder)` reads. Trained tokens are written beside it, one file \
each (`clip_g`), for `models/embeddings`.

Adapters of nano fit nano alone: ComfyUI's own nodes cannot load models of its size.""",
    "CascadePrompts": """\
Put the concept, variations of it, and something the model knew before, to see that it is not forgotten.""",
    "CascadeEncodeText": """\
For core's nodes too: the output has core's form. Core's own text encoder node does not know trained \
tokens of a run; this one does, behind *Apply Run*.""",
    "CascadeSampleStageC": """\
A picture depends on its own seed and not on the batch it is drawn in, up to the rounding of batched \
kernels.

Full-size models draw 1024×1024 pixels from 24×24 latents.""",
    "CascadeDecodeStageB": """\
Stage B needs few steps and little guidance. Width and height follow Stage C unless given.""",
    "CascadeDecodeStageA": """\
The latents are in the scale that core's VAE Decode takes.""",
    "CascadeEncodeStageC": """\
Pictures are resized so that their latents have the grid that pictures of their size are sampled at.""",
    "CascadeEncodeStageA": """\
*Encode Stage A* followed by *Decode Stage A* is the best any training of the other stages can reach.""",
    "CascadePreviewLatent": """\
Needs the previewer's file; nano has one.""",
    "CascadeLoadPictures": """\
For image to image, variations and reconstruction. Training takes *Image Folder*.""",
}


def page(name: str, schema: Mapping[str, Any]) -> str:
    """The help page of one node, Markdown."""
    lines = [
        f"# {schema['display_name']}",
        "",
        schema["description"],
        "",
        MORE[name],
        "",
        "## Inputs",
        "",
        "| input | type | default | |",
        "|---|---|---|---|",
    ]
    for group in ("required", "optional"):
        for entry, (kind, options) in schema["input"].get(group, {}).items():
            shown = "choice" if isinstance(kind, list) else str(kind)
            default = str(options.get("default", "")).replace("\n", " ").replace("|", "\\|")
            default = f"`{default}`" if default else ""
            tip = options["tooltip"].replace("|", "\\|").replace("\n", " ")
            lines.append(
                f"| `{entry}` | {shown}{', optional' if group == 'optional' else ''} | {default} | {tip} |"
            )
    if schema["output"]:
        lines += ["", "## Outputs", "", "| output | type | |", "|---|---|---|"]
        for label, kind, tip in zip(schema["output_name"], schema["output"], schema["output_tooltips"]):
            lines.append(f"| `{label}` | {kind} | {tip} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import cascade_train_nodes

    from cascade_train.graph.check.classes import object_info
    from cascade_train.host.headless import HeadlessHost, headless_folders

    FOLDER.mkdir(parents=True, exist_ok=True)
    mappings = cascade_train_nodes.build_mappings(HeadlessHost(headless_folders(Path("output"))))[0]
    for node, about in object_info(mappings).items():
        (FOLDER / f"{node}.md").write_text(page(node, about), encoding="utf-8", newline="\n")
