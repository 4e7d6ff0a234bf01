"""Which broker a command is about: its configuration, its data folder, its users file.

Owns the meaning of `--config`, `--data`, `--set`, `--host`, `--port` and `--port-offset`, which
several commands share. Must never look at the disk beyond the configuration file. Called by the
commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from vespiary_broker.app.users_file import MARK_NAME
from vespiary_spec import configuration as configurations
from vespiary_spec.changes import class_of
from vespiary_spec.errors import ConfigError
from vespiary_spec.model import Change, Spelling, field_named
from vespiary_spec.settings import Acceptor, Configuration

F = TypeVar("F", bound=Callable[..., Any])

ALL_PROTOCOLS = "all"
_PORT_MAX = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One broker of this machine.

    Attributes:
        configuration: Its configuration.
        data: Its data folder, absolute.
    """

    configuration: Configuration
    data: Path

    @property
    def users_file(self) -> Path:
        """Where its users are."""
        return self.data / (self.configuration.security.users_file or "users")

    @property
    def users_mark(self) -> Path:
        """The file by which it remembers that it has had users."""
        return self.data / MARK_NAME


def config_option(function: F) -> F:
    """Add `-c/--config`."""
    return click.option(
        "-c",
        "--config",
        "config",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="broker.yaml",
        help="Configuration of the broker. Without it every setting has its default.",
    )(function)


def data_option(function: F) -> F:
    """Add `--data`."""
    return click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Data folder; wins over `data-directory`.",
    )(function)


def set_option(function: F) -> F:
    """Add `--set`."""
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set a configuration name, dotted (`journal-type=NIO`, "
        "`address-settings.#.auto-create-queues=false`). May be repeated.",
    )(function)


def host_option(function: F) -> F:
    """Add `--host`."""
    return click.option("--host", help="Address for every listener (default: 127.0.0.1).")(function)


def port_option(function: F) -> F:
    """Add `--port`."""
    return click.option(
        "--port",
        type=click.IntRange(0, 65535),
        help="Port for all protocols (default: 61616). 0 takes free ports for every listener.",
    )(function)


def port_offset_option(function: F) -> F:
    """Add `--port-offset`."""
    return click.option(
        "--port-offset",
        type=click.IntRange(-65535, 65535),
        default=0,
        metavar="N",
        help="Add N to the port of every listener, for a second broker on this machine.",
    )(function)


def load_instance(
    config: Path | None,
    data: Path | None,
    overrides: tuple[str, ...] = (),
    *,
    live: Path | None = None,
    own: Path | None = None,
    host: str | None = None,
    port: int | None = None,
    port_offset: int = 0,
) -> Instance:
    """Return the broker that the options mean.

    Args:
        config: Its configuration file; None takes the defaults.
        data: Its data folder. None takes `data-directory`, which is relative to the
            configuration file's folder, or to the working folder without one.
        overrides: `NAME=VALUE` texts.
        live: A further configuration file, with settings of class reload alone.
        own: A further configuration file, whose settings win over those of the others; there may
            be no such file.
        host: Address for every listener; None leaves them.
        port: Port of the listener for all protocols; 0 takes free ports for every listener.
        port_offset: Added to every port other than 0.

    Raises:
        ConfigError: Anything is wrong; with the path to the field.
    """
    document = configurations.read_yaml(config) if config is not None else {}
    if isinstance(document, Mapping) and "kind" in document and "apiVersion" in document:
        raise ConfigError(
            f"this is a resource for Kubernetes ({document['kind']}), no broker.yaml",
            path=str(config),
            cure=f"run it with `vespiary apply -f {config}`",
        )
    if live is not None:
        document = _with_live(document, live)
    if own is not None and own.exists():
        document = _with_own(document, own)
    configuration = configurations.from_plain(document, overrides)
    if host is not None or port is not None or port_offset:
        configuration = shifted(listening_on(configuration, host, port), port_offset)
        configurations.check(configuration)
    folder = config.parent if config is not None else Path()
    return Instance(
        configuration=configuration,
        data=(data or folder / configuration.data_directory).absolute(),
    )


def _with_live(document: Any, live: Path) -> Any:
    """Return the content of a configuration file with that of another one beside it.

    Raises:
        ConfigError: The other one has something that needs a restart, or that stands in both.
    """
    found = configurations.read_yaml(live)
    if found is None:
        return document
    if not isinstance(found, Mapping) or not isinstance(document, Mapping | None):
        raise ConfigError("a configuration holds names with values", path=str(live), value=found)
    document = dict(document or {})
    for name, value in found.items():
        field = field_named(Configuration, str(name), Spelling.KEBAB)
        if field is not None and class_of(field) is not Change.RELOAD:
            raise ConfigError(
                f"`{name}` needs a restart, and this file is for what does not",
                path=str(live),
                cure="put it into the file that --config names",
            )
        if name in document:
            raise ConfigError(
                f"`{name}` stands in both configuration files",
                path=str(live),
                cure="leave it in one of them",
            )
        document[name] = value
    return document


def _with_own(document: Any, own: Path) -> Any:
    """Return the content of a configuration with that of the broker's own file laid over it.

    Raises:
        ConfigError: One of them is no mapping.
    """
    found = configurations.read_yaml(own)
    if found is None:
        return document
    if not isinstance(found, Mapping) or not isinstance(document, Mapping | None):
        raise ConfigError("a configuration holds names with values", path=str(own), value=found)
    return {**(document or {}), **found}


def listening_on(configuration: Configuration, host: str | None, port: int | None) -> Configuration:
    """Return the configuration with other listeners' addresses.

    Args:
        configuration: The configuration.
        host: Address for every listener; None leaves them.
        port: Port of the acceptor `all`, or of the first one if there is none of that name; 0 for
            every listener; None leaves them.
    """
    acceptors = configuration.acceptors
    main = next((a.name for a in acceptors if a.name == ALL_PROTOCOLS), acceptors[0].name)

    def moved(acceptor: Acceptor) -> Acceptor:
        is_meant = port is not None and (port == 0 or acceptor.name == main)
        return msgspec.structs.replace(
            acceptor,
            host=acceptor.host if host is None else host,
            port=port if is_meant else acceptor.port,
        )

    admin = configuration.admin
    return msgspec.structs.replace(
        configuration,
        acceptors=tuple(moved(acceptor) for acceptor in acceptors),
        admin=msgspec.structs.replace(
            admin,
            host=admin.host if host is None else host,
            port=0 if port == 0 else admin.port,
            probe_port=admin.probe_port and (0 if port == 0 else admin.probe_port),
        ),
    )


def shifted(configuration: Configuration, offset: int) -> Configuration:
    """Return the configuration with an offset added to every port.

    Args:
        configuration: The configuration.
        offset: What is added; ports that are 0 stay, as they are any free ones.

    Raises:
        ConfigError: A port would be below 1 or above 65535.
    """
    admin, acceptors = configuration.admin, configuration.acceptors
    named = [(f"acceptors.{each.name}.port", each.port) for each in acceptors]
    named += [("admin.port", admin.port), ("admin.probe-port", admin.probe_port or 0)]
    used = [(path, port) for path, port in named if port]
    for path, port in used:
        if not 1 <= port + offset <= _PORT_MAX:
            least = 1 - min(port for _, port in used)
            most = _PORT_MAX - max(port for _, port in used)
            raise ConfigError(
                f"--port-offset {offset} gives a port outside 1 to {_PORT_MAX}",
                path=path,
                value=port + offset,
                allowed=f"an offset of at least {least} and at most {most}",
            )

    def moved(port: int) -> int:
        return port and port + offset

    return msgspec.structs.replace(
        configuration,
        acceptors=tuple(msgspec.structs.replace(a, port=moved(a.port)) for a in acceptors),
        admin=msgspec.structs.replace(
            admin,
            port=moved(admin.port),
            probe_port=admin.probe_port and moved(admin.probe_port),
        ),
    )
