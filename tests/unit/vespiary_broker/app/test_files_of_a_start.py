"""Files that a start opens by a name that others may have given to something else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vespiary_broker.app.configuration_source import digests_of
from vespiary_broker.server.certificates import read_certificate
from vespiary_broker.server.tls_contexts import make_tls_context
from vespiary_spec.configuration import read_yaml
from vespiary_spec.errors import ConfigError
from vespiary_spec.settings import AcceptorTls
from vespiary_testkit.certificates import Authority


@pytest.fixture
def tls(tmp_path: Path) -> AcceptorTls:
    authority = Authority()
    authority.sign("localhost").write(tmp_path / "mounted")
    (tmp_path / "mounted" / "ca.crt").write_bytes(authority.certificate)
    names = {"certificate": "tls.crt", "key": "tls.key", "client_ca": "ca.crt"}
    for name in names.values():
        (tmp_path / name).symlink_to(tmp_path / "mounted" / name)
    return AcceptorTls(**{field: str(tmp_path / name) for field, name in names.items()})


def test_tls_files_may_be_links_as_kubernetes_mounts_them(tls: AcceptorTls) -> None:
    make_tls_context(tls, "all")
    assert read_certificate(tls.certificate, "all").subject


@pytest.mark.parametrize("field", ["certificate", "key", "client_ca"])
def test_a_pipe_among_the_tls_files_is_an_error_at_once(tls: AcceptorTls, field: str) -> None:
    path = Path(getattr(tls, field))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=rf"cannot read {path}"):
        make_tls_context(tls, "all")


READERS: dict[str, Callable[[Path], object]] = {
    "certificate": lambda path: read_certificate(str(path), "all"),
    "configuration": read_yaml,
}


@pytest.mark.parametrize("what", READERS)
def test_a_pipe_is_an_error_at_once(tmp_path: Path, what: str) -> None:
    path = tmp_path / "file"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        READERS[what](path)


def test_the_configuration_may_be_a_link_and_must_not_be_a_pipe(tmp_path: Path) -> None:
    path, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    path.write_text("name: one\n")
    link.symlink_to(path)
    os.mkfifo(pipe)
    assert read_yaml(link) == {"name": "one"}
    digests = digests_of([path, link, pipe])
    assert digests[str(path)] == digests[str(link)] != ""
    assert digests[str(pipe)] == ""
