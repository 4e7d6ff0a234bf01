"""Exports as tables of a lake: Delta and Iceberg, by their metadata alone."""
