"""Stable Cascade's parts: descriptions, loading, key layouts, the bundled nano model."""
