"""A user without a name gets one, by a list of users of its own; the system's stays as it is."""

from __future__ import annotations

import os
from pathlib import Path

from vespiary_pipeline.named_user import variables

NOBODY_HAS = 987_654_321


def test_a_user_with_a_name_keeps_it(tmp_path: Path) -> None:
    assert variables(os.getuid(), os.getgid(), tmp_path) == {}
    assert not list(tmp_path.iterdir())


def test_a_user_without_a_name_gets_one_that_no_other_has(tmp_path: Path) -> None:
    users = tmp_path / "system"
    users.write_text("root:x:0:0::/root:/bin/sh\nvespiary:x:10001:10001::/:/bin/sh\n")
    found = variables(NOBODY_HAS, 7, tmp_path, users)
    assert found["LD_PRELOAD"] == "libnss_wrapper.so"
    listed = Path(found["NSS_WRAPPER_PASSWD"]).read_text().splitlines()
    assert [line.split(":")[:4] for line in listed] == [
        ["root", "x", "0", "0"],
        ["vespiary", "x", str(NOBODY_HAS), "7"],
    ]
    assert "10001" in users.read_text()
