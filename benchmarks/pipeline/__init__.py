"""Measurements of the pipeline: how fast journals become columns."""
