"""Benchmarks of the protocols beside one another: `python -m benchmarks.protocols`."""
