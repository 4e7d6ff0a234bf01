"""Formats of the wire and of the disk, as pure functions and small state machines.

Owns the byte formats. Never does I/O, never looks at a clock, starts no task: time, limits and
bytes are arguments. Everything here but the optional `crc32c` package runs on a bare interpreter
(`python -S`). Called by the broker, by the operator's tools and by the pipeline.
"""
