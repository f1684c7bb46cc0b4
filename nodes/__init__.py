"""What a person sees in ComfyUI: thin V1 node classes over cascade_train."""
