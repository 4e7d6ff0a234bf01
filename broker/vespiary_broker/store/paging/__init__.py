"""Paging: messages of an address that are moved from the journal into files of its own.

Owns nothing itself: `folders` and `page_files` own the files, `page_recovery` what a start finds.
The idea is in `docs/internals/paging.md`, the format in `vespiary_codec.journal.page`.
"""
