"""The journal's bytes: file headers, blocks and records, as functions without I/O.

Owns the format of `docs/internals/journal-format.md`, in Python. Never reads a file, looks at a
clock or puts what a message says into an error. Called by the store's recovery, by the pure-Python
core, by the journal tools and by the pipeline; it needs nothing but the standard library.

    file_header   the first 4096 bytes of a file
    block         the unit of checksum and of loss
    record        what stands in blocks
"""
