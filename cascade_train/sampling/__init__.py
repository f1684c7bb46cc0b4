"""Drawing pictures: Stage C → Stage B → Stage A.

`pipeline` is the whole way from texts and pictures to pictures, `stages` each stage by itself, `links` the
same over what travels on ComfyUI's links, `validation` the prompts of a run. `spec` holds what travels on
links of our own and imports no torch.
"""
