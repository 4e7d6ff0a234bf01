"""`vespiary check`: its flags, its table, the termination message."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.cli.checking import policy_of
from vespiary_broker.cli.program import run_program
from vespiary_broker.store.volumes.identity import STAMP_NAME
from vespiary_spec.errors import ConfigError
from vespiary_spec.status import VerdictLevel
from vespiary_spec.verification import decode
from vespiary_testkit.certificates import Authority

EVERYTHING = '{"allow": ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs"]}'


def check(*arguments: str) -> int:
    return run_program(["check", "--filesystem-policy", EVERYTHING, *arguments])


def test_a_policy_is_json_or_a_file(tmp_path: Path):
    assert policy_of(None) is None
    policy = policy_of('{"allow": ["xfs"], "deny": ["zfs"]}')
    assert policy is not None
    assert (policy.allow, policy.warn, policy.deny) == (("xfs",), None, ("zfs",))
    (tmp_path / "policy").write_text("allow: [xfs]\n")
    assert policy_of(str(tmp_path / "policy")) == policy_of('{"allow": ["xfs"]}')


@pytest.mark.parametrize("text", ["{", '{"allow": "xfs"}', '{"permit": []}', "/nowhere/policy"])
def test_other_policies_are_refused(text: str):
    with pytest.raises(ConfigError):
        policy_of(text)


@pytest.mark.parametrize("ordinal", ["x", "-1", "orders-", "orders-x", "", "1.5", "Orders-1"])
def test_a_wrong_ordinal_is_a_usage_error(ordinal: str, capsys):
    assert check(f"--ordinal={ordinal}") == 2
    assert "--ordinal" in capsys.readouterr().err


def test_a_good_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    message = tmp_path / "message"
    code = check(
        "--data",
        str(tmp_path / "data"),
        "--owner-name",
        "shop/orders",
        "--owner-uid",
        "11",
        "--ordinal",
        "orders-2",
        "--termination-message",
        str(message),
        "--aio-demand",
        "16",
    )
    lines = capsys.readouterr().out.splitlines()
    assert (code, lines[-1]) == (0, "good")
    assert [line.split()[0] for line in lines[1:5]] == [
        "bindings",
        "journal",
        "paging",
        "large-messages",
    ]
    answer = decode(message.read_bytes())
    assert answer.verdict is not VerdictLevel.DENY
    assert answer.aio.demand == 16
    stamp = json.loads((tmp_path / "data/journal" / STAMP_NAME).read_text())
    assert (stamp["brokerName"], stamp["brokerUid"], stamp["ordinal"]) == ("shop/orders", "11", 2)


def test_without_an_owner_no_stamp_is_left(tmp_path: Path):
    assert check("--data", str(tmp_path)) == 0
    assert not (tmp_path / "journal" / STAMP_NAME).exists()


def test_the_volumes_of_another_are_refused_and_can_be_adopted(tmp_path: Path, capsys):
    data = ["--data", str(tmp_path)]
    assert check(*data, "--owner-name", "shop/orders") == 0
    assert check(*data, "--owner-name", "shop/bills") == 1
    assert "belongs to another" in capsys.readouterr().out
    (tmp_path / "paging" / STAMP_NAME).unlink()
    (tmp_path / "paging" / "page").touch()
    assert check(*data, "--owner-name", "shop/orders") == 1
    assert check(*data, "--owner-name", "shop/orders", "--adopt") == 0


def test_a_file_tells_which_volumes_to_adopt(tmp_path: Path, capsys):
    volumes, message = tmp_path / "data", tmp_path / "message"
    told = ["--adoptions", str(tmp_path / "adopt-0.yaml")]
    asked = ["--data", str(volumes), "--termination-message", str(message), *told]
    assert check(*asked, "--owner-name", "old/orders") == 0, "there need not be such a file"
    assert check(*asked, "--owner-name", "shop/orders") == 1
    refused = {each.name: each.may_adopt for each in decode(message.read_bytes()).volumes}
    assert refused == dict.fromkeys(("bindings", "journal", "paging", "large-messages"), True)
    names = [f"{name}: {name}-orders-0\n" for name in refused]
    (tmp_path / "adopt-0.yaml").write_text("".join(names[:3]))
    assert check(*asked, "--owner-name", "shop/orders") == 1, "one is missing"
    last = ["--adopt-volume", "large-messages"]
    assert check(*asked, *last, "--owner-name", "shop/orders") == 0
    assert all(each.adopted for each in decode(message.read_bytes()).volumes)
    assert "was adopted by broker shop/orders ordinal 0, as asked" in capsys.readouterr().out
    assert check(*asked, "--owner-name", "shop/orders") == 0
    assert not any(each.adopted for each in decode(message.read_bytes()).volumes)
    (tmp_path / "adopt-0.yaml").write_text("[journal]\n")
    assert check(*asked, "--owner-name", "shop/orders") == 1
    assert "volumes with their claims are expected here" in capsys.readouterr().err


def test_json_has_every_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert check("--data", str(tmp_path), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] in ("allow", "warn")
    assert {"name", "filesystem", "flushUsP50", "freeBytes"} <= set(report["volumes"][0])


def test_a_refused_filesystem_is_exit_code_1(tmp_path: Path, capsys):
    message = tmp_path / "message"
    nothing = '{"allow": ["nonesuch"], "warn": []}'
    data = tmp_path / "data"
    arguments = ["--data", str(data), "--termination-message", str(message)]
    code = run_program(["check", "--filesystem-policy", nothing, *arguments])
    assert code == 1
    assert capsys.readouterr().out.splitlines()[-1] == "refused"
    assert decode(message.read_bytes()).verdict is VerdictLevel.DENY
    assert not data.exists()


def test_a_wrong_configuration_leaves_a_message_too(tmp_path: Path, capsys):
    (tmp_path / "broker.yaml").write_text("jurnal-type: NIO\n")
    message = tmp_path / "message"
    code = check("--config", str(tmp_path / "broker.yaml"), "--termination-message", str(message))
    assert code == 1
    answer = decode(message.read_bytes())
    assert "journal-type" in answer.refusal
    assert answer.refusal in capsys.readouterr().err


def test_a_message_that_cannot_be_written_changes_no_verdict(tmp_path: Path, capsys):
    code = check(
        "--data", str(tmp_path / "data"), "--termination-message", str(tmp_path / "no" / "where")
    )
    assert code == 0
    assert "termination message cannot be written" in capsys.readouterr().err


def test_a_resource_is_checked_as_it_would_run(tmp_path: Path, capsys):
    manifest = tmp_path / "broker.yaml"
    manifest.write_text(
        "apiVersion: vespiary.dev/v1beta1\nkind: Broker\nmetadata: {name: orders}\n"
        "spec: {storage: {filesystemPolicy: {allow: [nonesuch], warn: []}}}\n"
    )
    arguments = ["check", "-c", str(manifest), "--data", str(tmp_path / "data")]
    assert run_program(arguments) == 1  # its own policy
    assert not (tmp_path / "data").exists()
    assert run_program([*arguments, "--filesystem-policy", EVERYTHING]) == 0
    assert (tmp_path / "data/journal" / STAMP_NAME).exists()
    assert run_program([*arguments, "--set", "journal-type=NIO"]) == 2


def test_memory_only_needs_no_disk(tmp_path: Path, capsys):
    assert check("--data", str(tmp_path / "x"), "--set", "persistence-enabled=false") == 0
    assert "nothing is written to disk" in capsys.readouterr().out
    assert not (tmp_path / "x").exists()


def tls_files(folder: Path) -> dict[str, str]:
    """Return TLS files by what is wrong with them."""
    for name in ("one", "two"):
        Authority().sign(name).write(folder / name)
    Authority().sign("small", rsa_bits=1024).write(folder / "small")
    (folder / "text").write_text("no certificate")
    small = folder / "small"
    one, two = folder / "one", folder / "two"
    return {
        "certificate": f"certificate: {folder / 'nosuch'}, key: {one / 'tls.key'}",
        "key": f"certificate: {one / 'tls.crt'}, key: {folder / 'nosuch'}",
        "match": f"certificate: {one / 'tls.crt'}, key: {two / 'tls.key'}",
        "text": f"certificate: {folder / 'text'}, key: {one / 'tls.key'}",
        "small": f"certificate: {small / 'tls.crt'}, key: {small / 'tls.key'}",
        "good": f"certificate: {one / 'tls.crt'}, key: {one / 'tls.key'}",
    }


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("certificate", "nosuch: No such file or directory"),
        ("key", "nosuch: No such file or directory"),
        ("match", "do not belong together"),
        ("small", "its key is too small"),
        ("text", "do not hold a certificate and its key in PEM form"),
        ("good", ""),
    ],
)
def test_tls_files_are_looked_at(
    tmp_path: Path, kind: str, said: str, capsys: pytest.CaptureFixture[str]
):
    config = tmp_path / "broker.yaml"
    acceptor = f"{{name: tls, port: 0, tls: {{{tls_files(tmp_path)[kind]}}}}}"
    config.write_text(f"acceptors: [{acceptor}]\nadmin: {{port: 0}}\n")
    code = check("-c", str(config))
    shown = capsys.readouterr()
    assert code == (1 if said else 0), shown
    assert said in shown.err
    assert ("acceptors.tls.tls" in shown.err) is bool(said)


def test_a_key_that_goes_while_it_is_looked_at_is_no_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    files = tls_files(tmp_path)["match"]
    key = Path(files.rpartition(" ")[2])
    config = tmp_path / "broker.yaml"
    config.write_text(
        f"acceptors: [{{name: tls, port: 0, tls: {{{files}}}}}]\nadmin: {{port: 0}}\n"
    )
    load = ssl.SSLContext.load_cert_chain

    def gone(context: ssl.SSLContext, *arguments: Any, **options: Any) -> None:
        key.unlink()
        load(context, *arguments, **options)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", gone)
    assert check("-c", str(config)) == 1
    error = capsys.readouterr().err
    assert "defect" not in error
    assert "acceptors.tls.tls" in error


@pytest.mark.parametrize(
    ("configuration", "path"),
    [
        ("admin: {host: 0.0.0.0}", "admin.host"),
        ("admin: {host: nosuch.invalid}", "admin.host"),
        ("acceptors: [{name: a, host: 192.0.2.1, port: 0}]\nadmin: {port: 0}", "acceptors.a"),
        (f"acceptors: [{{name: a, host: {'a' * 70}, port: 0}}]\nadmin: {{port: 0}}", "acceptors.a"),
        ('addresses: [{name: "a\\x01b"}]', "addresses[0]"),
        ("addresses: [{name: a, queues: [{name: q, filter-string: '('}]}]", "filter-string"),
        ("diverts: [{name: d, address: a, forwarding-address: a}]", "diverts"),
        ("diverts: [{name: d, address: a, forwarding-address: 'b.#'}]", "diverts"),
        ("journal-retention-directory: journal", "journal-retention-directory"),
        ("security: {users-file: people}", "people:1"),
    ],
)
def test_what_a_start_rejects_is_rejected(
    tmp_path: Path, configuration: str, path: str, capsys: pytest.CaptureFixture[str]
):
    config = tmp_path / "broker.yaml"
    config.write_text(configuration + "\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "people").write_text("no user\n")
    assert check("-c", str(config)) == 1
    sentence = capsys.readouterr().err
    assert path in sentence
    assert run_program(["run", "-c", str(config)]) == 1
    started = capsys.readouterr().err.splitlines()[-1]
    assert started in sentence, "the same sentence as at the start"


def test_a_port_that_is_taken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["--data", str(tmp_path / "data"), "--set", f"admin.port={port}"]
        assert check(*arguments) == 0, "perhaps it is this broker, at work"
        assert f"127.0.0.1:{port} is in use" in capsys.readouterr().err


def test_the_host_and_port_of_the_command_line_are_checked_as_run_takes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["--data", str(tmp_path / "data"), "--host", "127.0.0.2", "--port", str(port)]
        assert check(*arguments) == 0, "perhaps it is this broker, at work"
        assert f"127.0.0.2:{port} is in use" in capsys.readouterr().err


def test_a_port_that_another_program_has_is_not_said_to_be_an_acceptors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = tmp_path / "broker.yaml"
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        acceptors = ", ".join(
            f"{{name: {name}, host: {host}, port: {port}}}"
            for name, host in (("a", "127.0.0.1"), ("b", "127.0.0.2"))
        )
        config.write_text(f"acceptors: [{acceptors}]\nadmin: {{port: 0}}\n")
        (tmp_path / "data").mkdir()
        assert check("-c", str(config)) == 0, "perhaps it is this broker, at work"
    sentence = capsys.readouterr().err
    assert f"acceptors.b.port: 127.0.0.2:{port} is in use" in sentence
    assert "takes this one" not in sentence


@pytest.mark.parametrize(
    ("first", "second"),
    [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "localhost"), ("''", "127.0.0.1")],
)
def test_two_hosts_that_overlap_cannot_share_a_port(
    tmp_path: Path, first: str, second: str, capsys: pytest.CaptureFixture[str]
):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    acceptors = ", ".join(
        f"{{name: {name}, host: {host}, port: {port}}}"
        for name, host in (("a", first), ("b", second))
    )
    config = tmp_path / "broker.yaml"
    config.write_text(f"acceptors: [{acceptors}]\nadmin: {{port: 0}}\n")
    (tmp_path / "data").mkdir()
    assert check("-c", str(config)) == 1
    assert "acceptors.a.port takes this one" in capsys.readouterr().err


def test_two_acceptors_cannot_share_a_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = tmp_path / "broker.yaml"
    acceptors = f"{{name: a, port: {port}}}, {{name: b, host: 0.0.0.0, port: {port}}}"
    config.write_text(f"acceptors: [{acceptors}]\nadmin: {{port: 0}}\n")
    (tmp_path / "data").mkdir()
    assert check("-c", str(config)) == 1
    sentence = capsys.readouterr().err
    assert "acceptors.b.port" in sentence
    assert "acceptors.a.port takes this one" in sentence
