"""Saved workflows read and made into API prompts. Its doors: `load.read_workflow`, `convert.to_prompt`."""
