"""`vespiary run`, and what it shares with `apply`: a broker in the foreground.

Owns: what a person or a script sees of a broker's start, and its end. Called by `program`,
`applying`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.app.configuration_source import ConfigurationSource, digests_of
from vespiary_broker.app.early import begin_verification
from vespiary_broker.cli import terminal
from vespiary_broker.cli.checking import aio_shortage_option, policy_of
from vespiary_broker.cli.instance import (
    Instance,
    config_option,
    data_option,
    host_option,
    load_instance,
    port_offset_option,
    port_option,
    set_option,
)
from vespiary_spec.resources import FilesystemPolicy

_DURABILITY: Final = {
    "D0": "memory only, lost at a stop",
    "D1": "survives kill -9, not a power cut",
    "D2": "survives a power cut",
}
_GC_THRESHOLDS_OF_START: Final = (50_000, 20, 100)
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


@click.command("run", short_help="Run a broker in the foreground.")
@config_option
@click.option(
    "--live-config",
    "live",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A further configuration file, with settings alone that need no restart.",
)
@click.option(
    "--own-config",
    "own",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    envvar="VESPIARY_OWN_CONFIG",
    show_envvar=True,
    help="A further configuration file, whose settings win over the others'. It may be missing.",
)
@data_option
@host_option
@port_option
@port_offset_option
@set_option
@click.option("--json", "is_json", is_flag=True, help="Print events as JSON, one a line.")
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    help="Least level of log lines on standard error (default: warning for people, else info).",
)
@click.option(
    "--filesystem-policy",
    metavar="JSON|FILE",
    help="Which filesystems are taken, as `spec.storage.filesystemPolicy` of a Broker.",
)
@click.option("--ephemeral", is_flag=True, help="Losing the data is fine: tmpfs is taken too.")
@aio_shortage_option
def run(
    config: Path | None,
    live: Path | None,
    own: Path | None,
    data: Path | None,
    host: str | None,
    port: int | None,
    port_offset: int,
    overrides: tuple[str, ...],
    is_json: bool,
    log_level: str | None,
    filesystem_policy: str | None,
    ephemeral: bool,
    aio_shortage: str,
) -> int:
    """Run a broker until SIGTERM or Ctrl-C.

    Without options it listens on loopback, keeps its journal in ./data and lets everybody of this
    machine in. It prints one line for each listener, then `ready` with the journal engine and the
    durability class that are really in effect. Changed configuration files, users and certificates
    are taken while it runs, as far as they need no restart (docs/howto/configuration-changes.md);
    SIGHUP has them read again at once.
    """
    policy = policy_of(filesystem_policy)
    files = tuple(path for path in (config, live, own) if path is not None)
    digests = digests_of(files)

    def load() -> Instance:
        return load_instance(
            config,
            data,
            overrides,
            live=live,
            own=own,
            host=host,
            port=port,
            port_offset=port_offset,
        )

    return run_instance(
        load(),
        policy=policy,
        is_ephemeral=ephemeral,
        waits_for_aio=aio_shortage == "wait",
        is_json=is_json,
        log_level=log_level,
        source=ConfigurationSource(
            files=files,
            optional=frozenset() if own is None else frozenset({own}),
            digests=digests,
            read=(lambda: load().configuration) if files else None,
        ),
    )


def run_instance(
    instance: Instance,
    *,
    policy: FilesystemPolicy | None = None,
    is_ephemeral: bool = False,
    waits_for_aio: bool = False,
    is_json: bool = False,
    log_level: str | None = None,
    source: ConfigurationSource | None = None,
) -> int:
    """Run one broker in the foreground; return its exit code.

    Args:
        instance: The broker.
        policy: Which filesystems are taken; None takes the defaults.
        is_ephemeral: Losing the data is fine.
        waits_for_aio: Wait for AIO requests that the machine lacks, rather than take NIO.
        is_json: Print events as JSON.
        log_level: Least level of log lines; None leaves it to the configuration, and then to who
            reads them.
        source: Where the configuration comes from, to be read again; None: from nowhere.

    Raises:
        VespiaryError: It could not start; says why.
    """
    # Imports make much that lives and nothing that a collection would find.
    gc.set_threshold(*_GC_THRESHOLDS_OF_START)
    verified = begin_verification(
        instance.configuration,
        instance.data,
        policy,
        is_ephemeral=is_ephemeral,
        waits_for_aio=waits_for_aio,
    )
    # Only now: most of a start's time goes by here, while the volumes are verified.
    from vespiary_broker.app import event_loop, log_lines
    from vespiary_broker.app.broker import BrokerApp

    is_watched = not is_json and sys.stderr.isatty()
    default = "warning" if is_watched else "info"
    source = source or ConfigurationSource()
    if log_level is None:
        source = replace(source, log_level=lambda found: found.log_level or default)
        log_level = instance.configuration.log_level or default
    log_lines.set_up(log_level.upper())
    app = BrokerApp(
        instance.configuration,
        base=instance.data,
        on_event=terminal.show_json if is_json else event_printer(),
        policy=policy,
        is_ephemeral=is_ephemeral,
        waits_for_aio=waits_for_aio,
        verified=verified,
        source=source,
    )
    return event_loop.run(app.run())


def event_printer() -> Callable[[dict[str, Any]], None]:
    """Return a function that prints a broker's events for people."""
    ports: dict[str, tuple[str, int]] = {}

    def show(event: dict[str, Any]) -> None:
        if event["event"] == "listening":
            ports[event["name"]] = (event["host"], event["port"])
            terminal.echo(_listener_line(event))
        elif event["event"] == "ready":
            for line in _ready_lines(event, ports):
                terminal.echo(line)
        sys.stdout.flush()

    return show


def _listener_line(event: dict[str, Any]) -> str:
    place = _place(event["host"], event["port"])
    scheme = "http" if event["name"] == "http" else "tcp"
    return f"listening  {event['name']:<10} {scheme}://{place:<22} {' '.join(event['protocols'])}"


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ready_lines(event: dict[str, Any], ports: dict[str, tuple[str, int]]) -> list[str]:
    durability = event["durability"]
    meaning = _DURABILITY.get(durability, "")
    return [
        f"ready      in {event['seconds']:.2f} s, journal {event['engine']}, durability "
        f"{durability} ({meaning}), data in {event['data']}",
        f"try        {_line_to_try(ports)}",
    ]


def _line_to_try(ports: dict[str, tuple[str, int]]) -> str:
    """Return a command that sends a message to this broker and receives it."""
    name = sys.argv[0]
    words = name if name.startswith((".", "/")) and "/bin/" in name else "vespiary"
    host, port = next((place for key, place in ports.items() if key != "http"), ("", 0))
    is_default = host in ("127.0.0.1", "localhost") and port == 61616
    url = "" if is_default else f" --url stomp://{_place(host, port)}"
    return f'{words} send{url} orders "hello" && {words} receive{url} orders'
