"""The generator's command: writing, checking, and how it tells drift."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vespiary_spec.gen import __main__ as gen


@pytest.mark.ci
def test_what_was_written_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gen.main(["--root", str(tmp_path)]) == 0
    assert "crds/vespiary.dev_brokers.yaml: written" in capsys.readouterr().out
    assert gen.main(["--check", "--root", str(tmp_path)]) == 0
    assert gen.main(["--root", str(tmp_path)]) == 0
    assert "written" not in capsys.readouterr().out, "a second run has nothing to write"


def test_drift_names_the_files_and_the_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gen.main(["--root", str(tmp_path)])
    (tmp_path / "docs/reference/errors.md").unlink()
    changed = tmp_path / "crds/vespiary.dev_brokers.yaml"
    changed.write_text(changed.read_text().replace("brokers", "brokerz"))
    assert gen.main(["--check", "--root", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "crds/vespiary.dev_brokers.yaml (differs)" in message
    assert "docs/reference/errors.md (is missing)" in message
    assert "make gen" in message
    assert changed.read_text().count("brokerz"), "a check writes nothing"


@pytest.mark.ci
def test_every_generated_file_says_so() -> None:
    for path, make in gen.generated():
        assert "enerated by `make gen`" in "\n".join(make().splitlines()[:4]), path


@pytest.mark.ci
def test_a_generator_above_this_package_is_plugged_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plug_for_test.py").write_text("def text() -> str:\n    return 'plugged\\n'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugs = {"a/rbac.yaml": "plug_for_test:text", "a/other.yaml": "no_such_package.module:text"}
    monkeypatch.setattr(gen, "PLUGS", plugs)
    said: list[str] = []
    try:
        gen.run(tmp_path, is_check=False, say=said.append)
    finally:
        sys.modules.pop("plug_for_test", None)
    assert (tmp_path / "a/rbac.yaml").read_text() == "plugged\n"
    assert "a/other.yaml: skipped, no_such_package.module is not there" in said
    assert not (tmp_path / "a/other.yaml").exists()
