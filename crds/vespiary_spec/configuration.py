"""`broker.yaml`: reading it, changing it with `--set`, writing it, making it from a Broker.

Owns: the file's form (YAML, kebab-case) and the checks that span several settings.
Never: looks at the machine; adds a setting that the user did not write.
Called by: `vespiary run`, `create`, `apply`, `check`, and the operator's ConfigMap.

A file holds, at its top level, the settings of the broker, and beside them
`acceptors` (a list), `admin`, `security`, `addresses` (a list),
`address-settings` and `security-settings` (maps by match).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from vespiary_spec import limits
from vespiary_spec.acceptor_tls import HTTP_CERTIFICATE
from vespiary_spec.address_checks import check_address_settings, check_queue_kind
from vespiary_spec.conversion import convert, refusal, to_plain, usable_fields
from vespiary_spec.errors import ConfigError, UnreadableConfig
from vespiary_spec.model import FieldModel, Spelling, fields_of, spell, unwrap
from vespiary_spec.object_metadata import check_metadata
from vespiary_spec.per_broker import PerBroker
from vespiary_spec.pod_checks import check_pods
from vespiary_spec.regular_files import read_regular
from vespiary_spec.resources import (
    ADMIN_CLIENT_CERTIFICATE_TEXT,
    Broker,
    BrokerAcceptor,
    BrokerAdmin,
    TlsSecret,
)
from vespiary_spec.security_checks import check_anonymous_role, check_security_settings
from vespiary_spec.service_checks import check_services
from vespiary_spec.settings import (
    DEFAULT_ACCEPTORS,
    Acceptor,
    AcceptorTls,
    Address,
    AddressSettings,
    Admin,
    BrokerSettings,
    Configuration,
    Protocol,
    Security,
    SecuritySettings,
    WildcardAddresses,
)
from vespiary_spec.volume_checks import check_volumes
from vespiary_spec.volumes import Storage

EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 - inside a pod, whose ports the Services choose

VOLUME_ROOT = "/var/lib/vespiary"
"""Where a Broker's pod has its volumes: below it `bindings`, `journal`, and so on."""

TLS_ROOT = "/etc/vespiary/tls"
"""Where a Broker's pod has its TLS Secrets: below it a folder for each Secret's name."""

USERS_FILE = "/etc/vespiary/users/users"
"""Where a Broker's pod has its users file."""


def parse_yaml(text: str, *, source: str = "") -> Any:
    """Parse one YAML document.

    Args:
        text: The document.
        source: Name of the file, for error messages.

    Raises:
        UnreadableConfig: It is no YAML, or a name stands in it twice; with line and column.
    """
    # Not at the top: a broker without a configuration file starts 15 ms earlier.
    from vespiary_spec import yaml_text

    return yaml_text.parse(text, source=source)


def read_yaml(path: Path) -> Any:
    """Read a file with one YAML document.

    Raises:
        UnreadableConfig: The file cannot be read, is no UTF-8 or no usable YAML.
    """
    try:
        text = read_regular(path).decode("utf-8")
    except OSError as error:
        raise UnreadableConfig(
            f"the file cannot be read: {error.strerror or error}", path=str(path)
        ) from error
    except UnicodeDecodeError as error:
        raise UnreadableConfig(
            f"the file is no UTF-8 text (byte {error.start})", path=str(path)
        ) from error
    return parse_yaml(text, source=str(path))


def load(path: Path | None, overrides: Iterable[str] = ()) -> Configuration:
    """Read `broker.yaml`, apply `--set` options, and check the result.

    Args:
        path: The file; None starts from the defaults.
        overrides: `NAME=VALUE` texts, later ones win.

    Raises:
        ConfigError: Anything is wrong; with the path to the field.
    """
    data = read_yaml(path) if path is not None else {}
    return from_plain(data, overrides)


def from_plain(data: Any, overrides: Iterable[str] = ()) -> Configuration:
    """Make a checked configuration from the parsed content of `broker.yaml`.

    Raises:
        ConfigError: As `load`.
    """
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        raise ConfigError("a configuration holds names with values", path=".", value=data)
    try:
        data = _copied(data)
    except RecursionError:  # YAML can name what it stands in
        raise ConfigError("a value stands in itself, or nests too deeply", path=".") from None
    for override in overrides:
        apply_override(data, override)
    configuration = convert(data, Configuration, spelling=Spelling.KEBAB)
    check(configuration)
    return configuration


def _copied(data: Any) -> Any:
    """Copy mappings and lists, so that overrides leave the caller's data alone."""
    if isinstance(data, Mapping):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(value) for value in data] if isinstance(data, list) else data


def dump(configuration: Configuration, *, with_defaults: bool = False) -> str:
    """Write a configuration as `broker.yaml`; `from_plain` reads the same one back.

    Args:
        configuration: What to write.
        with_defaults: Whether values equal to their default are written too.
    """
    plain = to_plain(configuration, spelling=Spelling.KEBAB, with_defaults=with_defaults)
    from vespiary_spec import yaml_text  # as in `parse_yaml`

    return yaml_text.dump(plain)


# --- --set --------------------------------------------------------------------------------------


def apply_override(data: dict[str, Any], override: str) -> None:
    """Apply one `--set NAME=VALUE` to the parsed content of `broker.yaml`.

    The name is dotted. Below `address-settings` and `security-settings` everything up to the last
    dot is the match, which may hold dots itself: `address-settings.orders.#.NAME=VALUE`.
    Acceptors are named: `acceptors.stomp.port=0`. Lists are written with commas.

    Args:
        data: Changed in place.
        override: The text after `--set`.

    Raises:
        ConfigError: The name leads nowhere, or to something that is no single value.
    """
    name, equals, text = override.partition("=")
    name = name.strip()
    if not equals or not name:
        raise ConfigError(
            "`--set` takes NAME=VALUE", path="--set", value=override, cure="put a `=` between them"
        )
    _assign(data, Configuration, name, text, name)


def _assign(
    data: dict[str, Any], struct: type[msgspec.Struct], rest: str, text: str, path: str
) -> None:
    """Follow `rest` through the model and put the value where it ends."""
    head, _, tail = rest.partition(".")
    field = next(
        (f for f in usable_fields(struct, Spelling.KEBAB) if f.spelled(Spelling.KEBAB) == head),
        None,
    )
    if field is None:
        raise refusal(struct, head, Spelling.KEBAB, path)
    kind = field.type
    if isinstance(kind, inspect.StructType) and tail:
        _assign(_child(data, head, {}, path), kind.cls, tail, text, path)
    elif isinstance(kind, inspect.DictType) and "." in tail:
        match, _, setting_name = tail.rpartition(".")
        item = unwrap(kind.value_type)[0]
        assert isinstance(item, inspect.StructType)
        entries = _child(data, head, {}, path)
        _assign(_child(entries, match, {}, path), item.cls, setting_name, text, path)
    elif field.facts.key and "." in tail:
        _assign_in_list(data, field, tail, text, path)
    elif tail or isinstance(kind, inspect.StructType | inspect.DictType) or field.facts.key:
        raise ConfigError(
            "`--set` can set single values only", path=path, cure="write this into the file"
        )
    else:
        data[head] = _parsed(text, kind)


def _assign_in_list(
    data: dict[str, Any], field: FieldModel, tail: str, text: str, path: str
) -> None:
    """Set a value of the entry that `tail` names; the defaults count as written down."""
    head = field.spelled(Spelling.KEBAB)
    item = unwrap(field.type.item_type)[0] if isinstance(field.type, inspect.VarTupleType) else None
    assert isinstance(item, inspect.StructType)
    entries = _child(data, head, to_plain(field.default, spelling=Spelling.KEBAB), path)
    wanted, _, rest = tail.partition(".")
    names = [entry.get(field.facts.key) for entry in entries if isinstance(entry, dict)]
    if wanted not in names:
        raise ConfigError(
            f"there is no entry of this name in `{head}`",
            path=path,
            value=wanted,
            allowed=", ".join(str(name) for name in names) or "none: write it into the file",
        )
    _assign(entries[names.index(wanted)], item.cls, rest, text, path)


def _child(data: dict[str, Any], name: str, start: Any, path: str) -> Any:
    """Return what `data` has under a name; put `start` there first if it has nothing."""
    if data.get(name) is None:
        data[name] = start
    if type(data[name]) is not type(start):
        raise ConfigError("the file has something else here", path=path, value=data[name])
    return data[name]


def _parsed(text: str, kind: inspect.Type) -> Any:
    """Read a value as its field's type needs it; what is no number stays text."""
    if isinstance(kind, inspect.BoolType):
        return {"true": True, "false": False}.get(text.strip().lower(), text)
    if isinstance(kind, inspect.VarTupleType):
        return [part.strip() for part in text.split(",") if part.strip()]
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        try:
            return int(text)
        except ValueError:
            pass  # a suffix, a fraction, or wrong; conversion says which
        if isinstance(kind, inspect.FloatType):
            try:
                return float(text)
            except ValueError:
                return text
    return text


# --- checks -------------------------------------------------------------------------------------


def check(configuration: Configuration, spelling: Spelling = Spelling.KEBAB) -> None:
    """Check what spans several settings.

    Args:
        configuration: A converted configuration.
        spelling: How the error's path spells names.

    Raises:
        ConfigError: With the path to one of the settings that contradict each other.
    """

    def named(name: str) -> str:
        return next(f for f in fields_of(Configuration) if f.name == name).spelled(spelling)

    if configuration.journal_buffer_size > configuration.journal_file_size:
        raise ConfigError(
            "one record has to fit into one journal file",
            path=named("journal_buffer_size"),
            value=configuration.journal_buffer_size,
            allowed=f"at most {named('journal_file_size')} = {configuration.journal_file_size}",
        )
    for name in ("journal_retention_period", "journal_retention_storage_limit"):
        if configuration.journal_retention_directory is None and getattr(configuration, name):
            folder = "storage.volumes.retention of the resource"
            if spelling is Spelling.KEBAB:
                folder = named("journal_retention_directory")
            raise ConfigError(
                "there is no folder for copies that it is about",
                path=named(name),
                value=getattr(configuration, name),
                cure=f"give {folder}, or leave it out",
            )
    _check_wildcards(configuration.wildcard_addresses, spelling)
    _check_listeners(configuration, spelling)
    _check_addresses(configuration.addresses, spelling)
    _check_limits(configuration, spelling)
    check_address_settings(configuration.address_settings, spelling)
    check_anonymous_role(configuration.security.anonymous_role, spelling)
    check_security_settings(
        configuration.security_settings,
        configuration.wildcard_addresses,
        configuration.acceptors,
        spelling,
    )


def _check_listeners(configuration: Configuration, spelling: Spelling) -> None:
    listeners: dict[tuple[str, int], str] = {}
    admin = configuration.admin
    if admin.port:
        listeners[admin.host, admin.port] = "admin"
    if admin.probe_port:
        probe_path = f"admin.{spell('probe_port', spelling)}"
        if (admin.host, admin.probe_port) in listeners:
            raise ConfigError(
                "`admin` listens there already", path=probe_path, value=admin.probe_port
            )
        listeners[admin.host, admin.probe_port] = probe_path
    if admin.tls is not None:
        _check_tls(admin.tls, "admin.tls", spelling)
    for index, acceptor in enumerate(configuration.acceptors):
        path = f"acceptors[{index}]"
        place = (acceptor.host, acceptor.port)
        if acceptor.port and place in listeners:
            raise ConfigError(
                f"`{listeners[place]}` listens there already", path=f"{path}.port", value=place[1]
            )
        listeners[place] = acceptor.name
        if admin.tls is not None and acceptor.name == HTTP_CERTIFICATE:
            raise ConfigError(
                "with admin.tls this is the name of the HTTP port's certificate, in the metrics "
                "and elsewhere",
                path=f"{path}.name",
                value=acceptor.name,
                cure="give the acceptor another name",
            )
        if Protocol.STOMP in acceptor.protocols:
            _check_stomp(acceptor, configuration, path, spelling)
        if acceptor.tls is not None:
            _check_tls(acceptor.tls, f"{path}.tls", spelling)


def _check_wildcards(wildcards: WildcardAddresses, spelling: Spelling) -> None:
    owners: dict[str, str] = {}
    for field in fields_of(WildcardAddresses):
        sign = getattr(wildcards, field.name)
        if not isinstance(sign, str):
            continue
        own, whole = field.spelled(spelling), spell("wildcard_addresses", spelling)
        if sign in owners:
            raise ConfigError(
                f"`{own}` and `{owners[sign]}` are the same character",
                path=f"{whole}.{own}",
                value=sign,
                cure="take three different ones",
            )
        owners[sign] = own


def _check_stomp(
    acceptor: Acceptor, configuration: Configuration, path: str, spelling: Spelling
) -> None:
    stomp = acceptor.stomp
    names = {field.name: field.spelled(spelling) for field in fields_of(type(stomp))}
    most = configuration.journal_buffer_size - limits.RECORD_HEADROOM_BYTES
    if configuration.persistence_enabled and stomp.max_body_size > most:
        raise ConfigError(
            "a message of this size would not fit into one record of the journal",
            path=f"{path}.stomp.{names['max_body_size']}",
            value=stomp.max_body_size,
            allowed=f"at most {most} bytes (journal-buffer-size less "
            f"{limits.RECORD_HEADROOM_BYTES} for headers)",
            cure="lower it, or raise journal-buffer-size",
        )
    if stomp.max_header_line_size > stomp.max_header_size:
        raise ConfigError(
            "one line of the head cannot be longer than the head",
            path=f"{path}.stomp.{names['max_header_line_size']}",
            value=stomp.max_header_line_size,
            allowed=f"at most {stomp.max_header_size}",
        )
    if stomp.heart_beat_min > stomp.heart_beat_max:
        raise ConfigError(
            "the shortest interval is longer than the longest",
            path=f"{path}.stomp.{names['heart_beat_min']}",
            value=stomp.heart_beat_min,
            allowed=f"at most {stomp.heart_beat_max}",
        )
    if acceptor.anycast_prefix and acceptor.anycast_prefix == acceptor.multicast_prefix:
        raise ConfigError(
            "queues and topics need different prefixes", path=path, value=acceptor.anycast_prefix
        )


def _check_tls(tls: AcceptorTls, path: str, spelling: Spelling) -> None:
    names = {field.name: field.spelled(spelling) for field in fields_of(AcceptorTls)}
    asked = "need_client_auth" if tls.need_client_auth else "want_client_auth"
    if tls.client_ca is None and (tls.need_client_auth or tls.want_client_auth):
        raise ConfigError(
            "client certificates cannot be looked at without authorities",
            path=f"{path}.{names[asked]}",
            cure=f"name a file with their certificates as {names['client_ca']}",
        )
    if tls.need_client_auth is False and tls.client_ca is not None and not tls.want_client_auth:
        raise ConfigError(
            f"`{names['client_ca']}` is of no use where no client is asked for a certificate",
            path=f"{path}.{names['need_client_auth']}",
            cure=f"set {names['want_client_auth']}, or leave the authorities out",
        )
    for name, keys in (
        ("sni", [each.server_name.lower() for each in tls.sni]),
        ("certificate_users", [each.subject for each in tls.certificate_users]),
    ):
        twice = next((key for at, key in enumerate(keys) if key in keys[:at]), None)
        if twice is not None:
            raise ConfigError("it is there twice", path=f"{path}.{names[name]}", value=twice)


def _check_limits(configuration: Configuration, spelling: Spelling) -> None:
    queues = sum(len(address.queues) for address in configuration.addresses)
    for name, allowed, count in (
        ("max_addresses", configuration.max_addresses, len(configuration.addresses)),
        ("max_queues", configuration.max_queues, queues),
    ):
        if 0 < allowed < count:
            raise ConfigError(
                f"`addresses` has more than that: {count}",
                path=spell(name, spelling),
                value=allowed,
                allowed=f"{count} or more, -1, or 0 for any number",
            )


def _check_addresses(addresses: tuple[Address, ...], spelling: Spelling) -> None:
    owners: dict[str, str] = {}
    for index, address in enumerate(addresses):
        _check_reachable(address.name, f"addresses[{index}].name")
        for place, queue in enumerate(address.queues):
            path = f"addresses[{index}].queues[{place}]"
            _check_reachable(queue.name, f"{path}.name")
            if queue.name in owners:
                raise ConfigError(
                    f"the address `{owners[queue.name]}` has a queue of this name already",
                    path=f"{path}.name",
                    value=queue.name,
                )
            owners[queue.name] = address.name
            if address.routing_types and queue.routing_type not in address.routing_types:
                raise ConfigError(
                    "the address does not serve the queue's routing type",
                    path=path,
                    value=queue.routing_type.value,
                    allowed=", ".join(kind.value for kind in address.routing_types),
                )
            check_queue_kind(queue, path, spelling)


def _check_reachable(name: str, path: str) -> None:
    """Refuse a name that no client could say: it would be taken for an address and a queue."""
    if "::" in name:
        raise ConfigError(
            "a name with :: in it means a queue of an address",
            path=path,
            value=name,
            cure="name the address without it, and the queue in its `queues`",
        )


# --- from a resource ----------------------------------------------------------------------------


def _pod_folders(root: str, storage: Storage) -> dict[str, str | None]:
    """Return the folders of a pod's volumes, by the names of their settings."""
    volumes = storage.volumes
    return {
        "data_directory": root,
        "bindings_directory": f"{root}/bindings",
        "journal_directory": f"{root}/journal",
        "paging_directory": f"{root}/paging",
        "large_messages_directory": f"{root}/large-messages",
        "jms_directory": f"{root}/jms" if volumes.jms is not None else None,
        "journal_retention_directory": (
            f"{root}/retention" if volumes.retention is not None else None
        ),
    }


def from_broker(
    broker: Broker,
    *,
    host: str = EVERY_INTERFACE,
    volume_root: str = VOLUME_ROOT,
    tls_root: str = TLS_ROOT,
    users_file: str = USERS_FILE,
) -> Configuration:
    """Make the configuration that a Broker's pods run with.

    Args:
        broker: The resource.
        host: Address that acceptors and the HTTP listener listen on.
        volume_root: Folder that holds the volumes `bindings`, `journal`, `paging` and
            `large-messages`, and `jms` and `retention` where there are any.
        tls_root: Folder that holds one folder for each TLS Secret (see `tls_secrets`).
        users_file: The users file that the operator makes from the Secret.

    Raises:
        ConfigError: Settings contradict each other; with the path in the resource's spelling.
    """
    spec = broker.spec
    check_pods(spec)
    check_volumes(spec.storage)
    check_services(spec)
    check_metadata(
        spec.inherited_metadata.labels,
        spec.inherited_metadata.annotations,
        "spec.inheritedMetadata",
    )
    settings = {f.name: getattr(spec.config, f.name) for f in fields_of(BrokerSettings)}
    settings |= _pod_folders(volume_root, spec.storage)
    acceptors: Iterable[BrokerAcceptor | Acceptor] = spec.acceptors or DEFAULT_ACCEPTORS
    configuration = Configuration(
        **settings,
        acceptors=tuple(_pod_acceptor(a, spec.tls, host, tls_root) for a in acceptors),
        admin=_pod_admin(spec.admin, host, tls_root),
        security=Security(
            users_file=users_file,
            allow_anonymous_on_loopback=False,
            allow_anonymous=spec.auth.allow_anonymous,
            anonymous_role=spec.auth.anonymous_role,
            wildcard_subscriptions=spec.auth.wildcard_subscriptions,
        ),
        addresses=spec.addresses,
        address_settings={
            entry.match: AddressSettings(
                **{f.name: getattr(entry, f.name) for f in fields_of(AddressSettings)}
            )
            for entry in spec.address_settings
        },
        security_settings={
            entry.match: SecuritySettings(
                **{f.name: getattr(entry, f.name) for f in fields_of(SecuritySettings)}
            )
            for entry in spec.security_settings
        },
    )
    try:
        check(configuration, Spelling.CAMEL)
    except ConfigError as error:
        if error.path.startswith("security."):
            error.where = f"spec.auth.{error.path.removeprefix('security.')}"
            raise
        beside = error.path.startswith(("acceptors", "address", "admin", "securitySettings"))
        error.where = f"spec.{error.path}" if beside else f"spec.config.{error.path}"
        raise
    return configuration


def overrides_of(broker: Broker) -> dict[int, dict[str, Any]]:
    """Return what single brokers have otherwise than the rest, as `broker.yaml` spells it.

    Args:
        broker: The resource.

    Raises:
        ConfigError: As `from_broker`; or a broker's own settings contradict those of all.
    """
    common = from_broker(broker)
    found = {}
    for index, entry in enumerate(broker.spec.per_broker):
        _with_own(common, entry, index)
        found[entry.ordinal] = to_plain(entry.config, spelling=Spelling.KEBAB)
    return found


def with_overrides(configuration: Configuration, broker: Broker, ordinal: int) -> Configuration:
    """Return the configuration of one broker of a Broker.

    Args:
        configuration: What all of them have.
        broker: The resource.
        ordinal: Number of the broker.

    Raises:
        ConfigError: Its own settings contradict those of all.
    """
    for index, entry in enumerate(broker.spec.per_broker):
        if entry.ordinal == ordinal:
            configuration = _with_own(configuration, entry, index)
    return configuration


def _with_own(configuration: Configuration, entry: PerBroker, index: int) -> Configuration:
    own = {f.name: getattr(entry.config, f.name) for f in fields_of(type(entry.config))}
    own = {name: value for name, value in own.items() if value is not None}
    whole = msgspec.structs.replace(configuration, **own)
    try:
        check(whole, Spelling.CAMEL)
    except ConfigError as error:
        error.where = f"spec.perBroker[{index}].config.{error.path}"
        raise
    return whole


def dump_plain(plain: Mapping[str, Any]) -> str:
    """Write settings that are plain data already, as `broker.yaml` has them."""
    from vespiary_spec import yaml_text  # as in `parse_yaml`

    return yaml_text.dump(dict(plain))


def _pod_admin(admin: BrokerAdmin, host: str, tls_root: str) -> Admin:
    if admin.tls is not None and admin.tls.require_client_certificate:
        raise ConfigError(
            ADMIN_CLIENT_CERTIFICATE_TEXT, path="spec.admin.tls.requireClientCertificate"
        )
    tls = None if admin.tls is None else _pod_tls(admin.tls, tls_root)
    return Admin(host=host, port=admin.port, probe_port=admin.probe_port, tls=tls)


def _pod_tls(secret: TlsSecret, tls_root: str) -> AcceptorTls:
    folder = f"{tls_root}/{secret.secret_name}"
    return AcceptorTls(
        certificate=f"{folder}/tls.crt",
        key=f"{folder}/tls.key",
        client_ca=f"{folder}/ca.crt" if secret.needs_authorities else None,
        want_client_auth=secret.needs_authorities and not secret.require_client_certificate,
        certificate_users=secret.certificate_users,
    )


def _pod_acceptor(
    acceptor: BrokerAcceptor | Acceptor, shared: TlsSecret | None, host: str, tls_root: str
) -> Acceptor:
    secret = acceptor.tls if isinstance(acceptor.tls, TlsSecret) else shared
    tls = None if secret is None else _pod_tls(secret, tls_root)
    own = {
        field.name: getattr(acceptor, field.name)
        for field in fields_of(Acceptor)
        if field.name not in ("host", "tls")
    }
    return Acceptor(**own, host=host, tls=tls)


def tls_secrets(broker: Broker) -> tuple[str, ...]:
    """Return the names of the Secrets that a Broker's pods need below `TLS_ROOT`, sorted."""
    names = {broker.spec.tls.secret_name} if broker.spec.tls else set()
    names |= {acceptor.tls.secret_name for acceptor in broker.spec.acceptors or () if acceptor.tls}
    if broker.spec.admin.tls is not None:
        names.add(broker.spec.admin.tls.secret_name)
    return tuple(sorted(names))
