"""The short form of the report, for terminals.

Owns: headline, findings and one sentence for each part, in plain text. Names are cleaned, so none
can move the cursor. Called by the jobs.
"""

from __future__ import annotations

import textwrap
from typing import Final

from vespiary_pipeline.report import measures
from vespiary_pipeline.report.findings import Level, findings
from vespiary_pipeline.report.page import all_sections, headline
from vespiary_pipeline.report.tables import ReportTables

_SIGNS: Final = {Level.BAD: "!!", Level.WARN: " !", Level.NOTE: " -"}
_WIDTH_MIN: Final = 40


def text_report(tables: ReportTables, width: int = 100) -> str:
    """Return the report as lines of text.

    Args:
        tables: What to show.
        width: Columns of the terminal; lines are at least 40 wide.
    """
    width = max(width, _WIDTH_MIN)

    def wrapped(words: str, first: str, later: str) -> list[str]:
        return textwrap.wrap(
            words, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False
        )

    lines = [measures.shorten(tables.run.path, width), ""]
    facts = headline(tables)
    left = max(len(one.name) for one in facts)
    lines += [
        f"  {one.name:<{left}}  {measures.shorten(f'{one.value}  {one.note}', width - left - 4)}"
        for one in facts
    ]
    lines.append("")
    found = findings(tables)
    for one in found:
        lines += wrapped(f"{one.sentence}.", f"{_SIGNS[one.level]} ", "   ")
        lines += wrapped(one.cure, "   ", "   ")
        if one.command:
            lines.append(f"   $ {one.command}")
    if not found:
        lines.append("Nothing here needs attention.")
    lines.append("")
    for part in all_sections(tables):
        lines += wrapped(f"{part.heading}: {part.sentence}", "", "  ")
    return "\n".join(lines) + "\n"
