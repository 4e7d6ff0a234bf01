"""`broker.yaml`: YAML, `--set`, checks over several settings, and from a Broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vespiary_spec.configuration import (
    dump,
    from_broker,
    from_plain,
    load,
    parse_yaml,
    tls_secrets,
)
from vespiary_spec.errors import (
    ConfigError,
    UnknownSetting,
    UnreadableConfig,
)
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_spec.settings import AddressSettings, Configuration, RoutingType


def broker(spec: dict[str, Any]) -> Broker:
    return Broker.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "Broker",
            "metadata": {"name": "orders"},
            "spec": spec,
        }
    )


def test_a_file_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("journal-max-io: 20\naddresses:\n- name: orders\n", encoding="utf-8")
    found = load(path, ["journal-max-io=30", "journal-type=NIO"])
    assert found.journal_max_io == 30
    assert found.addresses[0].name == "orders"


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("# nothing yet\n", encoding="utf-8")
    assert load(path) == load(None) == Configuration()


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        (b"a: [1\n", ":2:1", "no usable YAML"),
        (b"a: 1\nb: 2\na: 3\n", ":3:1", "`a` stands here twice"),
        (b"a: !!python/object:os.system {}\n", ":1:4", "could not determine a constructor"),
        (b"\xff\xfe", "", "no UTF-8"),
        (b"a: {b: 1, b: 2}", ":1:11", "`b` stands here twice"),
        (b"a: \x00", "", "no usable YAML"),
        (b"[" * 30_000, "", "nests too deeply"),
    ],
)
def test_a_file_that_cannot_be_parsed(tmp_path: Path, text: bytes, where: str, words: str) -> None:
    path = tmp_path / "broker.yaml"
    path.write_bytes(text)
    with pytest.raises(UnreadableConfig, match=words) as caught:
        load(path)
    assert caught.value.path.endswith(f"broker.yaml{where}" if where else caught.value.path)


def test_a_value_that_stands_in_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("a: &a [*a]")
    with pytest.raises(ConfigError, match="stands in itself"):
        load(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(UnreadableConfig, match="cannot be read") as caught:
            load(path)
        assert caught.value.path == str(path)


def test_overrides_reach_everywhere() -> None:
    found = from_plain(
        {"address-settings": {"orders.#": {"auto-delete-queues": False}}},
        [
            "address-settings.#.auto-create-queues=false",
            "address-settings.orders.#.default-queue-routing-type=ANYCAST",
            "acceptors.stomp.port=0",
            "acceptors.stomp.stomp.heart-beat-to-connection-ttl-modifier=1.5",
            "acceptors.all.protocols=STOMP",
            "admin.port=0",
            "journal-file-size=1MiB",
            "min-disk-free=-1",
            "persistence-enabled=true",
            "security.users-file=123",
        ],
    )
    assert found.address_settings == {
        "#": AddressSettings(auto_create_queues=False),
        "orders.#": AddressSettings(
            auto_delete_queues=False, default_queue_routing_type=RoutingType.ANYCAST
        ),
    }
    assert [(a.name, a.port) for a in found.acceptors] == [
        ("all", 61616),
        ("amqp", 5672),
        ("mqtt", 1883),
        ("stomp", 0),
    ]
    assert found.acceptors[-1].stomp.heart_beat_to_connection_ttl_modifier == 1.5
    assert found.journal_file_size == 1024 * 1024
    assert found.security.users_file == "123"


def test_overrides_leave_the_callers_data_alone() -> None:
    data: dict[str, Any] = {"address-settings": {"#": {}}, "acceptors": [{"name": "a", "port": 1}]}
    from_plain(data, ["address-settings.#.auto-create-queues=false", "acceptors.a.port=2"])
    assert data == {"address-settings": {"#": {}}, "acceptors": [{"name": "a", "port": 1}]}


@pytest.mark.parametrize(
    ("override", "kind", "words"),
    [
        ("journal-max-io", ConfigError, "NAME=VALUE"),
        ("=3", ConfigError, "NAME=VALUE"),
        ("journal-maxio=3", UnknownSetting, "`journal-max-io`"),
        ("address-settings.#.page-limit-bytes=10MiB", ConfigError, "page-full-policy"),
        ("address-settings.#.auto-create-queue=true", UnknownSetting, "`auto-create-queues`"),
        ("address-settings.#=1", ConfigError, "single values"),
        ("acceptors.other.port=1", ConfigError, "all, amqp, mqtt, stomp"),
        ("acceptors.all=1", ConfigError, "single values"),
        ("addresses=1", ConfigError, "single values"),
        ("admin=1", ConfigError, "single values"),
        ("journal-max-io.x=1", ConfigError, "single values"),
        ("journal-max-io=many", ConfigError, "whole number"),
        ("persistence-enabled=maybe", ConfigError, "true, false"),
    ],
)
def test_a_bad_override_names_the_setting(
    override: str, kind: type[ConfigError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        from_plain({}, [override])


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"journal-file-size": "64KiB", "journal-buffer-size": "128KiB"}, "journal-buffer-size"),
        (
            {"acceptors": [{"name": "a", "port": 1, "stomp": {"max-body-size": "490KiB"}}]},
            "acceptors[0].stomp.max-body-size",
        ),
        (
            {"acceptors": [{"name": "a", "port": 1}, {"name": "b", "port": 1}]},
            "acceptors[1].port",
        ),
        ({"acceptors": [{"name": "a", "port": 8161}]}, "acceptors[0].port"),
        ({"admin": {"probe-port": 8161}}, "admin.probe-port"),
        (
            {"admin": {"probe-port": 8162}, "acceptors": [{"name": "a", "port": 8162}]},
            "acceptors[0].port",
        ),
        (
            {"admin": {"tls": {"certificate": "c", "key": "k", "want-client-auth": True}}},
            "admin.tls.want-client-auth",
        ),
        (
            {"acceptors": [{"name": "a", "port": 1, "stomp": {"max-header-size": 1024}}]},
            "acceptors[0].stomp.max-header-line-size",
        ),
        (
            {"acceptors": [{"name": "a", "port": 1, "stomp": {"heart-beat-max": 100}}]},
            "acceptors[0].stomp.heart-beat-min",
        ),
        (
            {"acceptors": [{"name": "a", "port": 1, "anycast-prefix": "/topic/"}]},
            "acceptors[0]",
        ),
        (
            {
                "addresses": [
                    {"name": "a", "queues": [{"name": "q"}]},
                    {"name": "b", "queues": [{"name": "q"}]},
                ]
            },
            "addresses[1].queues[0].name",
        ),
        (
            {
                "addresses": [
                    {"name": "a", "routing-types": ["MULTICAST"], "queues": [{"name": "q"}]}
                ]
            },
            "addresses[0].queues[0]",
        ),
        ({"addresses": [{"name": "a::b"}]}, "addresses[0].name"),
        (
            {"addresses": [{"name": "a", "queues": [{"name": "a::b"}]}]},
            "addresses[0].queues[0].name",
        ),
        (
            {"address-settings": {"a.#": {"address-full-policy": "BLOCK", "max-size-bytes": 0}}},
            "address-settings.a.#.max-size-bytes",
        ),
        (
            {"address-settings": {"#": {"address-full-policy": "BLOCK", "max-size-messages": 0}}},
            "address-settings.#.max-size-messages",
        ),
        (
            {
                "address-settings": {
                    "#": {"address-full-policy": "DROP", "max-size-bytes-reject-threshold": 10}
                }
            },
            "address-settings.#.max-size-bytes-reject-threshold",
        ),
        (
            {
                "address-settings": {
                    "#": {"max-size-bytes": "1MiB", "max-size-bytes-reject-threshold": "1MiB"}
                }
            },
            "address-settings.#.max-size-bytes-reject-threshold",
        ),
    ],
)
def test_settings_that_contradict_each_other(data: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_plain(data)
    assert caught.value.path == path


def test_without_persistence_a_body_need_not_fit_the_journal() -> None:
    acceptors = [{"name": "a", "port": 1, "stomp": {"max-body-size": "1MiB"}}]
    made = from_plain({"persistence-enabled": False, "acceptors": acceptors})
    assert made.acceptors[0].stomp.max_body_size == 1024 * 1024 > made.journal_buffer_size
    with pytest.raises(ConfigError):
        from_plain({"acceptors": acceptors})


def test_limits_of_stomp_are_checked_where_it_is_spoken() -> None:
    small = {"journal-buffer-size": "32KiB"}
    found = from_plain(small | {"acceptors": [{"name": "a", "port": 1, "protocols": ["MQTT"]}]})
    assert found.journal_buffer_size == 32 * 1024
    with pytest.raises(ConfigError, match="max-body-size"):
        from_plain(small | {"acceptors": [{"name": "a", "port": 1}]})


def test_two_listeners_may_both_take_a_free_port() -> None:
    names = ("all", "amqp", "mqtt", "stomp")
    free = from_plain({}, [*(f"acceptors.{name}.port=0" for name in names), "admin.port=0"])
    assert [each.port for each in (*free.acceptors, free.admin)] == [0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "values", [{"journal-retention-period": "7d"}, {"journal-retention-storage-limit": "1GiB"}]
)
def test_limits_of_copies_need_a_folder_of_copies(values: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="journal-retention-directory"):
        from_plain(values)
    from_plain({**values, "journal-retention-directory": "history"})


def test_a_dump_reads_back() -> None:
    found = from_plain(
        {
            "journal-max-io": 20,
            "address-settings": {"#": {"auto-create-queues": False}},
            "addresses": [{"name": "größe", "queues": [{"name": "q", "durable": False}]}],
        }
    )
    for with_defaults in (False, True):
        text = dump(found, with_defaults=with_defaults)
        assert from_plain(parse_yaml(text)) == found
    assert "größe" in text


def test_a_bare_broker_makes_a_configuration_that_reads_back() -> None:
    found = from_broker(broker({}))
    assert found.journal_directory == "/var/lib/vespiary/journal"
    assert found.large_messages_directory == "/var/lib/vespiary/large-messages"
    assert {a.host for a in found.acceptors} == {found.admin.host} == {"0.0.0.0"}
    assert not found.security.allow_anonymous_on_loopback
    assert from_plain(parse_yaml(dump(found))) == found


def test_a_brokers_parts_arrive() -> None:
    made = broker(
        {
            "config": {"journalFileSize": "20Mi", "journalMaxIo": 40},
            "addressSettings": [{"match": "orders.#", "autoCreateQueues": False}],
            "addresses": [{"name": "orders", "queues": [{"name": "orders"}]}],
            "acceptors": [
                {"name": "clear", "port": 61613},
                {"name": "secure", "port": 61614, "tls": {"secretName": "own"}},
            ],
            "admin": {"port": 9000},
        }
    )
    found = from_broker(made, host="127.0.0.1", volume_root="/data", tls_root="/tls")
    assert (found.journal_file_size, found.journal_max_io) == (20 * 1024 * 1024, 40)
    assert found.address_settings == {"orders.#": AddressSettings(auto_create_queues=False)}
    assert found.addresses == made.spec.addresses
    assert found.admin.port == 9000
    assert found.acceptors[0].tls is None
    assert found.acceptors[1].tls is not None
    assert found.acceptors[1].tls.certificate == "/tls/own/tls.crt"
    assert found.acceptors[1].tls.client_ca is None
    assert found.bindings_directory == "/data/bindings"
    assert tls_secrets(made) == ("own",)


def test_a_broker_has_a_port_for_probes_and_tls_at_its_http_port_if_it_asks_for_it() -> None:
    found = from_broker(broker({"admin": {"port": 8170, "probePort": 8171}})).admin
    assert (found.port, found.probe_port, found.tls) == (8170, 8171, None)
    assert from_broker(broker({"tls": {"secretName": "all"}})).admin.tls is None
    made = broker({"tls": {"secretName": "all"}, "admin": {"tls": {"secretName": "own"}}})
    tls = from_broker(made).admin.tls
    assert tls is not None
    assert (tls.certificate, tls.key) == (
        "/etc/vespiary/tls/own/tls.crt",
        "/etc/vespiary/tls/own/tls.key",
    )
    assert tls.client_ca is None
    assert tls_secrets(made) == ("all", "own")


def test_client_certificates_may_be_asked_for_at_a_brokers_http_port() -> None:
    users = [{"subject": "CN=press 7,O=Orders", "user": "press"}]
    asked = {"secretName": "own", "requestClientCertificate": True, "certificateUsers": users}
    tls = from_broker(broker({"admin": {"tls": asked}})).admin.tls
    assert tls is not None
    assert tls.client_ca == "/etc/vespiary/tls/own/ca.crt"
    assert tls.want_client_auth
    assert tls.certificate_users[0].user == "press"


def test_the_operator_has_no_client_certificate_to_show() -> None:
    asked = {"secretName": "own", "requireClientCertificate": True}
    with pytest.raises(ConfigError, match="the operator has no client certificate") as caught:
        from_broker(broker({"admin": {"tls": asked}}))
    assert caught.value.path == "spec.admin.tls.requireClientCertificate"
    assert "requestClientCertificate" in str(caught.value)


def test_prometheus_reads_metrics_over_tls_by_the_port_for_probes_alone() -> None:
    monitor = {"podMonitor": {"credentialsSecretName": "watcher"}}
    spec: dict[str, Any] = {"metrics": monitor, "admin": {"tls": {"secretName": "own"}}}
    with pytest.raises(ConfigError, match="not in the certificate") as caught:
        from_broker(broker(spec))
    assert caught.value.path == "spec.metrics.podMonitor"
    spec["admin"]["probePort"] = 8162
    assert from_broker(broker(spec)).admin.probe_port == 8162


def test_an_acceptor_is_not_called_as_the_http_port_with_tls_is() -> None:
    tls = {"certificate": "c", "key": "k"}
    acceptors = [{"name": "http", "port": 61613}]
    assert from_plain({"acceptors": acceptors}).acceptors[0].name == "http"
    with pytest.raises(ConfigError, match="name of the HTTP port") as caught:
        from_plain({"acceptors": acceptors, "admin": {"tls": tls}})
    assert caught.value.path == "acceptors[0].name"


def test_the_brokers_tls_is_that_of_acceptors_that_name_no_other() -> None:
    made = broker({"tls": {"secretName": "all", "requireClientCertificate": True}})
    acceptors = from_broker(made).acceptors
    assert acceptors
    for acceptor in acceptors:
        assert acceptor.tls is not None
        assert acceptor.tls.client_ca == "/etc/vespiary/tls/all/ca.crt"
        assert not acceptor.tls.want_client_auth


def test_client_certificates_may_be_asked_for_and_not_needed() -> None:
    users = [{"subject": "CN=press 7,O=Orders", "user": "press"}]
    tls = {"secretName": "all", "requestClientCertificate": True, "certificateUsers": users}
    acceptor = from_broker(broker({"tls": tls})).acceptors[0]
    assert acceptor.tls is not None
    assert acceptor.tls.client_ca == "/etc/vespiary/tls/all/ca.crt"
    assert acceptor.tls.want_client_auth
    assert acceptor.tls.certificate_users[0].user == "press"


TLS = {"certificate": "c", "key": "k"}
NAMED = {"server-name": "A.example", "certificate": "c", "key": "k"}


@pytest.mark.parametrize(
    ("tls", "path"),
    [
        ({"need-client-auth": True}, "need-client-auth"),
        ({"want-client-auth": True}, "want-client-auth"),
        ({"client-ca": "ca", "need-client-auth": False}, "need-client-auth"),
        ({"sni": [NAMED, {**NAMED, "server-name": "a.example"}]}, "sni"),
        ({"sni": [{**NAMED, "server-name": "a..*"}]}, "sni[0].server-name"),
        ({"certificate-users": [{"subject": "CN=a", "user": "b"}] * 2}, "certificate-users"),
    ],
)
def test_contradictions_in_tls(tls: dict[str, Any], path: str) -> None:
    acceptor = {"name": "a", "port": 1, "tls": {**TLS, **tls}}
    with pytest.raises(ConfigError) as caught:
        from_plain({"acceptors": [acceptor]})
    assert caught.value.path == f"acceptors[0].tls.{path}"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"acceptors": [{"name": "a", "port": 8161}]}, "spec.acceptors[0].port"),
        ({"admin": {"probePort": 8161}}, "spec.admin.probePort"),
        (
            {"metrics": {"podMonitor": {"interval": "30s"}}},
            "spec.metrics.podMonitor.credentialsSecretName",
        ),
        (
            {"config": {"journalFileSize": "64Ki", "journalBufferSize": "1Mi"}},
            "spec.config.journalBufferSize",
        ),
        ({"config": {"journalRetentionPeriod": "7d"}}, "spec.config.journalRetentionPeriod"),
    ],
)
def test_contradictions_in_a_broker_are_told_in_its_own_spelling(
    spec: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        from_broker(broker(spec))
    assert caught.value.path == path


def test_wildcards_have_three_different_characters() -> None:
    assert (
        from_plain({"wildcard-addresses": {"delimiter": "/"}}).wildcard_addresses.delimiter == "/"
    )
    with pytest.raises(ConfigError, match="`single-word` and `any-words` are the same") as caught:
        from_plain({"wildcard-addresses": {"single-word": "#"}})
    assert caught.value.path == "wildcard-addresses.single-word"
    with pytest.raises(ConfigError):
        from_plain({"wildcard-addresses": {"delimiter": ".."}})


def test_what_is_configured_has_room() -> None:
    data: dict[str, Any] = {"addresses": [{"name": n, "queues": [{"name": n}]} for n in "abc"]}
    assert from_plain(data | {"max-addresses": 3, "max-queues": 0})
    for name in ("max-addresses", "max-queues"):
        with pytest.raises(ConfigError, match="`addresses` has more than that: 3") as caught:
            from_plain(data | {name: 2})
        assert caught.value.path == name
