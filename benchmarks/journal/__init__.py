"""Measures the journal by itself, beside the raw disk on the same files."""
