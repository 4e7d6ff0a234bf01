"""Records as columns: what the pipeline scans journals with.

Owns the choice of implementation. Called by the pipeline.
"""

from __future__ import annotations

from vespiary_codec.journal.column_parts import combine_crcs, gather, header, properties
from vespiary_codec.journal.column_scan import scan

__all__ = ["combine_crcs", "gather", "header", "properties", "scan"]
