"""What `--config`, `--data`, `--set`, `--host` and `--port` mean together."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_broker.cli.instance import load_instance
from vespiary_spec.errors import ConfigError, UnknownSetting, UnreadableConfig


def write(folder: Path, text: str) -> Path:
    path = folder / "broker.yaml"
    path.write_text(text, "utf-8")
    return path


def test_without_options_everything_has_its_default(monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    instance = load_instance(None, None)
    assert instance.data == tmp_path / "data"
    assert instance.users_file == tmp_path / "data/users"
    assert [a.port for a in instance.configuration.acceptors] == [61616, 5672, 1883, 61613]


def test_the_data_folder_is_relative_to_the_configuration(monkeypatch, tmp_path: Path):
    monkeypatch.chdir("/")
    path = write(tmp_path, "data-directory: store\nsecurity: {users-file: people}\n")
    assert load_instance(path, None).data == tmp_path / "store"
    assert load_instance(path, None).users_file == tmp_path / "store/people"
    assert load_instance(path, Path("/elsewhere")).data == Path("/elsewhere")


def test_an_absolute_data_folder_stays(tmp_path: Path):
    path = write(tmp_path, "data-directory: /var/lib/vespiary\n")
    assert load_instance(path, None).data == Path("/var/lib/vespiary")


def test_port_0_takes_free_ports_for_every_listener():
    configuration = load_instance(None, None, port=0).configuration
    assert [a.port for a in configuration.acceptors] == [0, 0, 0, 0]
    assert configuration.admin.port == 0


def test_a_port_is_that_of_all_protocols(tmp_path: Path):
    configuration = load_instance(None, None, port=7000).configuration
    assert [a.port for a in configuration.acceptors] == [7000, 5672, 1883, 61613]
    assert configuration.admin.port == 8161
    path = write(tmp_path, "acceptors: [{name: mine, port: 1}, {name: other, port: 2}]\n")
    configuration = load_instance(path, None, port=7000).configuration
    assert [a.port for a in configuration.acceptors] == [7000, 2]


def test_an_offset_is_added_to_every_port(tmp_path: Path):
    configuration = load_instance(None, None, port_offset=1000).configuration
    assert [a.port for a in configuration.acceptors] == [62616, 6672, 2883, 62613]
    assert configuration.admin.port == 9161
    configuration = load_instance(None, None, port=7000, port_offset=5).configuration
    assert [a.port for a in configuration.acceptors][:2] == [7005, 5677]
    path = write(tmp_path, "acceptors: [{name: mine, port: 0}]\nadmin: {port: 0}\n")
    configuration = load_instance(path, None, port_offset=1000).configuration
    assert (configuration.acceptors[0].port, configuration.admin.port) == (0, 0), "free ones stay"


def test_an_offset_that_gives_an_invalid_port_is_rejected():
    with pytest.raises(
        ConfigError, match=r"acceptors\.all\.port.*outside 1 to 65535.*got 65616.*at most 3919"
    ):
        load_instance(None, None, port_offset=4000)


def test_a_host_is_that_of_every_listener():
    configuration = load_instance(None, None, host="0.0.0.0").configuration
    assert {a.host for a in configuration.acceptors} == {"0.0.0.0"}
    assert configuration.admin.host == "0.0.0.0"


def test_a_port_that_is_given_twice_is_refused():
    with pytest.raises(ConfigError, match="listens there already"):
        load_instance(None, None, port=61613)


def test_settings_win_over_the_file(tmp_path: Path):
    path = write(tmp_path, "journal-type: ASYNCIO\n")
    instance = load_instance(path, None, ("journal-type=NIO", "journal-min-files=3"))
    assert instance.configuration.journal_type == "NIO"
    assert instance.configuration.journal_min_files == 3


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("jurnal-type: NIO", UnknownSetting, "Did you mean `journal-type`"),
        ("journal-type: FAST", ConfigError, "ASYNCIO, NIO"),
        ("journal-min-files: 1", ConfigError, "2 to 10000"),
        ("a: b: c", UnreadableConfig, "broker.yaml:1:5"),
        ("- x", ConfigError, "names with values"),
        ("kind: Broker\napiVersion: vespiary.dev/v1beta1", ConfigError, "vespiary apply -f"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, error: type, says: str):
    with pytest.raises(error) as refusal:
        load_instance(write(tmp_path, text), None)
    assert says in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(UnreadableConfig, match=r"nowhere\.yaml"):
        load_instance(tmp_path / "nowhere.yaml", None)
