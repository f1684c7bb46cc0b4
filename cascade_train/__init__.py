"""Cascade Train: Stable Cascade training as graphs. Importing this package imports nothing heavy."""

__version__ = "0.1.0"
