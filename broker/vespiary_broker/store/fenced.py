"""The error that stands for a journal once a failure has ended it.

Owns its words. Called by the journals.
"""

from __future__ import annotations

from vespiary_spec.errors import VespiaryError, WriterFailed


def fenced(label: str, error: VespiaryError) -> WriterFailed:
    """Return what fences a journal because of an error.

    Args:
        label: What the journal is called.
        error: The failure; one that is final already is kept as it is.
    """
    if isinstance(error, WriterFailed):
        return error
    failure = WriterFailed(
        f"the {label} is closed for writing: {error.what}",
        where=error.where,
        measured=error.measured,
        allowed=error.allowed,
        cure="look at the disk and the kernel log, then restart the broker",
    )
    failure.__cause__ = error
    return failure
