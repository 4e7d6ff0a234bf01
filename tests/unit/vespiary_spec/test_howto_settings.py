"""docs/howto/addresses.md names every setting of an address, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

from vespiary_spec.conversion import usable_fields
from vespiary_spec.model import Spelling
from vespiary_spec.settings import AddressSettings

HOWTO = Path(__file__).resolve().parents[3] / "docs/howto"


def named_in_the_table() -> list[str]:
    """Return the settings in the first column of the table of settings by match."""
    section = (HOWTO / "addresses.md").read_text().partition("## Settings by match")[2]
    rows = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]


def test_every_setting_of_an_address_is_named_once_and_nothing_else():
    names = named_in_the_table()
    usable = {f.spelled(Spelling.KEBAB) for f in usable_fields(AddressSettings, Spelling.KEBAB)}
    assert len(usable) > 50
    assert usable - set(names) == set(), "settings that docs/howto/addresses.md does not name"
    assert set(names) - usable == set(), "names there that are no settings"
    assert len(names) == len(set(names)), "a setting stands there twice"


def test_the_pages_that_the_table_leads_to_are_there():
    section = (HOWTO / "addresses.md").read_text().partition("## Settings by match")[2]
    pages = set(re.findall(r"\]\(([\w-]+\.md)\)", section))
    assert pages
    assert [page for page in pages if not (HOWTO / page).is_file()] == []
