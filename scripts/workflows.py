"""``workflows``: the graphs that people open, written from the nodes, so that the two cannot drift apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.sheet import Sheet, text

BLOCKS, STEPS = 3, 500
LORA: dict[str, Any] = {"rank": 16, "alpha": 16.0, "modules": "attn, channelwise"}
TOKENS: dict[str, Any] = {"new_tokens": "[crescent] = ^moon</w>$", "learning_rate": 0.003}
OPTIMIZER: dict[str, Any] = {"learning_rate": 0.0007, "warmup": 20, "schedule": "cosine"}
RUN: dict[str, Any] = {"batch_size": 16, "total_steps": BLOCKS * STEPS, "loss_weight": "min_snr_inverse"}
PROMPTS = """\
a large red [crescent] in the centre on a black background
a medium white [crescent] on the left on a navy background
a large blue star in the centre on a grey background"""

ABOUT_TEACH = """\
## Teach nano a new concept

Twenty small pictures of a **crescent**, a shape that the bundled nano model was never shown. A LoRA and \
a new word, `[crescent]`, learn it in three blocks, with validation pictures between.

Press Run: a few minutes on a CPU. Press it again and nothing is trained twice. Change the last block \
and only that block is trained again, from exactly where the second ended. Stop whenever you like: \
running again goes on from there.

**Your own concept:** write the path of your folder into *Image Folder*, put a word like `[mycat]` into \
the captions (a `.txt` beside each picture), into *Train Tokens* and into *Prompts*.

The same file runs without ComfyUI: `cascade-train run teach_a_concept.json`"""

ABOUT_KNOWN = """\
Shown nothing but crescents, a model forgets what else it knew. So it first draws some of what it knows, one \
picture for each line below at low guidance, and three in four of every batch are taken from these."""

KNOWN_COUNT = 128


def known_captions() -> str:
    """Lines of nano's own world, each shape at least three times, whatever their order."""
    from collections import Counter

    from cascade_train.nano import world

    lines: list[str] = []
    seen: Counter[str] = Counter()
    index = 0
    while len(lines) < KNOWN_COUNT:
        scene, caption = world.scene("captioned", 7, index)
        index += 1
        if caption not in lines and seen[scene.shape] <= len(lines) / len(world.SHAPES):
            seen[scene.shape] += 1
            lines.append(caption)
    return "\n".join(lines)


ABOUT_TEXT = """\
## Text to image, stage by stage

**Stage C** draws what the text says as small latents, **Stage B** turns them into the latents of \
**Stage A**, which decodes them to pixels.

Choose *files* in Load Stable Cascade for the full-size models; nano comes with the pack. A run you \
trained goes between Load Stable Cascade and the others with *Apply Run*."""

ABOUT_RECONSTRUCT = """\
## What each stage keeps of a picture

Pictures go through the semantic compressor and come back by Stage B and Stage A; beside them Stage A \
alone, which is the best that can be had, and the previewer, which is quick and rough.

Nothing is trained here. What this loses, no training of Stage C can bring back."""

REAL_RUN: dict[str, Any] = {"batch_size": 4, "total_steps": 2000, "precision": "bf16", "image_share": 0.0}
REAL_PROMPTS = """\
a photo of my subject
a photo of my subject in the snow, mountains behind
a watercolour painting of my subject
a photo of a red bicycle leaning on a wall"""

ABOUT_REAL = """\
## Your first real LoRA

The 3.6B model on one card of 24 GB. Before pressing Run: the files in ComfyUI's model folders, your folder \
of pictures in *Image Folder*, each with a `.txt` beside it that says what it shows, always with the same \
words for what is new ("my subject"). The same words go into *Prompts*.

Pictures come after every 250 steps, always from the same seeds. The last prompt has nothing to do with \
your subject: when it starts to change, the LoRA has begun to forget.

Nothing is trained twice; stop whenever you like. What to change when memory is short: see *Load Stable \
Cascade* (`compact`, `offload`) and `cascade-train plan lora_stable_cascade.json`."""

ABOUT_REAL_SIZE = """\
Pictures are taken at 768 pixels, which is a grid of 24×24 latents: the grid that 1024-pixel pictures are \
drawn on. Encoding at 1024 would train on 32×32, another grid than the one that is used."""


def schemas() -> dict[str, Any]:
    """The pack's nodes and the few core ones that the workflows use."""
    import cascade_train_nodes

    from cascade_train.graph.check.classes import object_info
    from cascade_train.graph.core.standins import standins
    from cascade_train.host.headless import HeadlessHost, headless_folders

    host = HeadlessHost(headless_folders(Path("output")))
    classes, _ = cascade_train_nodes.build_mappings(host)
    return object_info({**standins(host), **classes})


def teach_a_concept() -> Sheet:
    s = Sheet(schemas())
    s.note("about", ABOUT_TEACH, title="Teach a concept", width=420)
    s.node("models", "CascadeLoadStableCascade")
    s.node("folder", "CascadeImageFolder", called="Twenty pictures of a crescent")
    s.note("about_known", ABOUT_KNOWN, title="So that nothing is forgotten", width=420)
    s.node("lines", "PrimitiveStringMultiline", called="What nano knows", wide=420, value=known_captions())
    s.node(
        "known",
        "CascadePrompts",
        called="Draw what it knows",
        texts=("lines", "STRING"),
        pictures=1,
        cfg_c=2.0,
    )
    s.node(
        "drawn",
        "CascadeValidate",
        called="Pictures of what it knows",
        prompts=("known", "prompts"),
        models=("models", "models"),
        title="what nano knows",
    )
    s.node("kept", "CascadeDatasetFromImages", images=("drawn", "pictures"), captions=("lines", "STRING"))
    s.node(
        "both",
        "CascadeCombineDatasets",
        dataset_1=("folder", "dataset"),
        share_1=1.0,
        dataset_2=("kept", "dataset"),
        share_2=3.0,
    )
    s.node(
        "buckets",
        "CascadeAspectBuckets",
        dataset=("both", "dataset"),
        ratios="1/1",
        crop="center",
        random_share=0.0,
    )
    s.node(
        "look", "CascadeDatasetPreview", dataset=("buckets", "dataset"), models=("models", "models"), count=20
    )
    s.node(
        "looked", "PreviewImage", called="What it learns from", wide=420, high=360, images=("look", "grid")
    )
    s.node("lora", "CascadeLoRATarget", **LORA)
    s.node("tokens", "CascadeTrainTokens", target=("lora", "target"), **TOKENS)
    s.node("optimizer", "CascadeOptimizer", **OPTIMIZER)
    s.node(
        "run",
        "CascadeTrainingRun",
        models=("models", "models"),
        dataset=("buckets", "dataset"),
        target=("tokens", "target"),
        optimizer=("optimizer", "optimizer"),
        label="teach a concept",
        **RUN,
    )
    s.node("prompts", "CascadePrompts", texts=PROMPTS, pictures=4)
    s.node(
        "before",
        "CascadeValidate",
        called="Validate before",
        prompts=("prompts", "prompts"),
        models=("models", "models"),
        title="before training",
    )
    s.node("before_shown", "PreviewImage", called="Before", wide=320, high=400, images=("before", "grid"))
    last = "run"
    for number in range(1, BLOCKS + 1):
        block = s.node(
            f"block_{number}",
            "CascadeTrainSteps",
            called=f"Train Steps {number}",
            run=(last, "run"),
            steps=STEPS,
        )
        s.node(
            f"look_{number}",
            "CascadeValidate",
            called=f"Validate {number}",
            prompts=("prompts", "prompts"),
            run=(block, "run"),
        )
        s.node(
            f"shown_{number}",
            "PreviewImage",
            called=f"After block {number}",
            wide=320,
            high=400,
            images=(f"look_{number}", "grid"),
        )
        last = block
    s.node("compare", "CascadeCompareGrids", image_1=("before", "grid"), image_2=(f"look_{BLOCKS}", "grid"))
    s.node(
        "compared",
        "SaveImage",
        called="Before and after",
        wide=560,
        high=520,
        images=("compare", "sheet"),
        filename_prefix="teach_a_concept/before_after",
    )
    s.node(
        "loss",
        "SaveImage",
        called="Loss",
        wide=560,
        high=400,
        images=(last, "loss_plot"),
        filename_prefix="teach_a_concept/loss",
    )
    s.node(
        "export",
        "CascadeExportRun",
        called="Export the LoRA",
        run=(last, "run"),
        wide=560,
        filename="teach_a_concept/crescent_lora",
    )
    s.column("Start here", "models", "about", "models")
    s.column("What it knows already", "validation", "about_known", "lines", "known", "drawn", "kept")
    s.column("Pictures", "data", "folder", "both", "buckets", "look", "looked")
    s.column("What is trained, and how", "training", "lora", "tokens", "optimizer", "run")
    s.column("Before", "validation", "prompts", "before", "before_shown")
    for number in range(1, BLOCKS + 1):
        s.column(f"Block {number}", "training", f"block_{number}", f"look_{number}", f"shown_{number}")
    s.column("Results", "result", "compare", "compared", "loss", "export")
    return s


def text_to_image() -> Sheet:
    s = Sheet(schemas())
    s.note("about", ABOUT_TEXT, title="Text to image", width=380)
    s.node("models", "CascadeLoadStableCascade")
    s.node(
        "text",
        "CascadeEncodeText",
        models=("models", "models"),
        text="a large yellow star in the centre on a navy background",
    )
    s.node("negative", "CascadeEncodeText", called="Negative", models=("models", "models"), text="")
    s.node(
        "c",
        "CascadeSampleStageC",
        models=("models", "models"),
        positive=("text", "conditioning"),
        negative=("negative", "conditioning"),
        pictures=8,
    )
    s.node("rough", "CascadePreviewLatent", models=("models", "models"), stage_c=("c", "stage_c"))
    s.node(
        "rough_shown", "PreviewImage", called="Stage C, by the previewer", high=360, images=("rough", "image")
    )
    s.node(
        "b",
        "CascadeDecodeStageB",
        models=("models", "models"),
        stage_c=("c", "stage_c"),
        positive=("text", "conditioning"),
        negative=("negative", "conditioning"),
    )
    s.node("a", "CascadeDecodeStageA", models=("models", "models"), stage_b=("b", "stage_b"))
    s.node(
        "sheet",
        "CascadeCompareGrids",
        called="One sheet",
        label_1="a large yellow star",
        label_2="",
        image_1=("a", "image"),
    )
    s.node(
        "saved",
        "SaveImage",
        wide=480,
        high=520,
        images=("sheet", "sheet"),
        filename_prefix="text_to_image/stars",
    )
    s.column("Start here", "models", "about", "models")
    s.column("Text", "data", "text", "negative")
    s.column("Stage C", "training", "c", "rough", "rough_shown")
    s.column("Stages B and A", "training", "b", "a")
    s.column("Pictures", "result", "sheet", "saved")
    return s


def reconstruct() -> Sheet:
    s = Sheet(schemas())
    s.note("about", ABOUT_RECONSTRUCT, title="Reconstruct", width=380)
    s.node("models", "CascadeLoadStableCascade")
    s.node("pictures", "CascadeLoadPictures", count=9)
    s.node("encode_c", "CascadeEncodeStageC", models=("models", "models"), image=("pictures", "images"))
    s.node("b", "CascadeDecodeStageB", models=("models", "models"), stage_c=("encode_c", "stage_c"), cfg=1.0)
    s.node(
        "a",
        "CascadeDecodeStageA",
        called="Decode Stage A",
        models=("models", "models"),
        stage_b=("b", "stage_b"),
    )
    s.node("encode_a", "CascadeEncodeStageA", models=("models", "models"), image=("pictures", "images"))
    s.node(
        "a_alone",
        "CascadeDecodeStageA",
        called="Decode Stage A alone",
        models=("models", "models"),
        stage_b=("encode_a", "stage_b"),
    )
    s.node("rough", "CascadePreviewLatent", models=("models", "models"), stage_c=("encode_c", "stage_c"))
    s.node(
        "sheet",
        "CascadeCompareGrids",
        label_1="the pictures",
        label_2="compressor, B, A",
        label_3="A alone",
        label_4="previewer",
        image_1=("pictures", "images"),
        image_2=("a", "image"),
        image_3=("a_alone", "image"),
        image_4=("rough", "image"),
    )
    s.node(
        "saved",
        "SaveImage",
        wide=640,
        high=420,
        images=("sheet", "sheet"),
        filename_prefix="reconstruct/pictures",
    )
    s.column("Start here", "models", "about", "models", "pictures")
    s.column("Through the compressor", "training", "encode_c", "b", "a")
    s.column("For comparison", "validation", "encode_a", "a_alone", "rough")
    s.column("Pictures", "result", "sheet", "saved")
    return s


def lora_stable_cascade() -> Sheet:
    s = Sheet(schemas())
    s.note("about", ABOUT_REAL, title="Your first real LoRA", width=420)
    s.node(
        "models",
        "CascadeLoadStableCascade",
        source="files",
        precision="bf16",
        stage_b="stage_b_lite_bf16.safetensors",
    )
    s.note("about_size", ABOUT_REAL_SIZE, title="Which size", width=420)
    s.node("folder", "CascadeImageFolder", called="Your pictures")
    s.node("buckets", "CascadeAspectBuckets", dataset=("folder", "dataset"))
    s.node("cache", "CascadeCacheLatents", dataset=("buckets", "dataset"), models=("models", "models"))
    s.node(
        "look", "CascadeDatasetPreview", dataset=("buckets", "dataset"), models=("models", "models"), count=16
    )
    s.node(
        "looked", "PreviewImage", called="What it learns from", wide=420, high=360, images=("look", "grid")
    )
    s.node("lora", "CascadeLoRATarget", rank=16, alpha=16.0, modules="attn")
    s.node("optimizer", "CascadeOptimizer", learning_rate=1e-4, warmup=50)
    s.node(
        "run",
        "CascadeTrainingRun",
        models=("models", "models"),
        dataset=("cache", "dataset"),
        target=("lora", "target"),
        optimizer=("optimizer", "optimizer"),
        label="my subject",
        **REAL_RUN,
    )
    s.node("prompts", "CascadePrompts", texts=REAL_PROMPTS, pictures=2)
    s.node(
        "train",
        "CascadeTrainAndValidate",
        run=("run", "run"),
        prompts=("prompts", "prompts"),
        total=REAL_RUN["total_steps"],
        every=250,
    )
    s.node(
        "grids",
        "SaveImage",
        called="Pictures on the way",
        wide=640,
        high=620,
        images=("train", "grids"),
        filename_prefix="lora_stable_cascade/grids",
    )
    s.node(
        "export",
        "CascadeExportRun",
        called="Export the LoRA",
        run=("train", "run"),
        wide=480,
        filename="lora_stable_cascade/my_subject",
    )
    s.column("Start here", "models", "about", "models")
    s.column("Your pictures", "data", "about_size", "folder", "buckets", "cache", "look", "looked")
    s.column("What is trained, and how", "training", "lora", "optimizer", "run")
    s.column("Train, with pictures between", "validation", "prompts", "train")
    s.column("Results", "result", "grids", "export")
    return s


WORKFLOWS = {
    "teach_a_concept": teach_a_concept,
    "text_to_image": text_to_image,
    "reconstruct": reconstruct,
    "lora_stable_cascade": lora_stable_cascade,
}


def files() -> dict[str, str]:
    """The workflow files."""
    return {f"workflows/{name}.json": text(name, make()) for name, make in WORKFLOWS.items()}
