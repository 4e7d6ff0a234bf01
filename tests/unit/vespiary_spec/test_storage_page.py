"""The page about storage has every verdict, in the words that users read."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_spec.filesystems import KNOWN_TYPES, verdict
from vespiary_spec.resources import FilesystemPolicy

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "storage.md"


@pytest.mark.parametrize("kind", KNOWN_TYPES)
def test_the_page_has_the_sentence_of_each_filesystem(kind: str) -> None:
    found = verdict(kind, volume="journal")
    assert f"| {kind} | {found.level.value} | {found.sentence} |" in PAGE.read_text("utf-8")


def test_the_page_has_the_warning_of_an_override() -> None:
    policy = FilesystemPolicy(allow=("ext4", "nfs4"))
    sentence = verdict("nfs4", None, policy, volume="journal").sentence
    assert sentence in " ".join(PAGE.read_text("utf-8").split())
