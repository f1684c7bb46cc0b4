"""LoRA files as other programs write them, read as changes of the layers of a Stable Cascade."""
