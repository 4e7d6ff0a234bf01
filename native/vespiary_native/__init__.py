"""The native layer: C for bytes and I/O, and a pure-Python twin for each part of it.

Import the module that you need: `ring` (open_ring), `abc_ring` (the contract of a ring), `memory`
(AlignedBuffer), `crc32c`, `loader` (ffi, lib, is_native). Importing the package loads nothing.
"""
