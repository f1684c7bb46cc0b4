"""Grids of pictures and plots, drawn with Pillow and its own font. Knows nothing of models, data or runs."""
