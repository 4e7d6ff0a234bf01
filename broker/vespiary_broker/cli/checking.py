"""`vespiary check`: verify the volumes of a broker, alone or in the init container of its pod.

Owns: the command, its table for people, and the termination message. The verification itself is
`store.volumes`. Called by `program`, `running`, `applying`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from vespiary_broker.cli import terminal
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
from vespiary_broker.cli.resources import LOOPBACK, is_resource, local_broker
from vespiary_broker.store.volumes import request, verification
from vespiary_broker.store.volumes.identity import Owner
from vespiary_broker.store.volumes.report import Report
from vespiary_broker.store.volumes.request import VerificationRequest
from vespiary_spec import configuration as configurations
from vespiary_spec import units
from vespiary_spec.conversion import convert
from vespiary_spec.errors import ConfigError, VespiaryError
from vespiary_spec.model import Spelling
from vespiary_spec.resources import FilesystemPolicy
from vespiary_spec.verification import AioResult, Verification, VolumeResult, encode, summarise

_FLAGS: Final = {True: "yes", False: "no", None: "-"}


aio_shortage_option = click.option(
    "--aio-shortage",
    type=click.Choice(("nio", "wait")),
    default="nio",
    show_default=True,
    help="What to do while `fs.aio-max-nr` has no room for the journal: take the engine NIO, or "
    "let the broker wait for it.",
)


def _ordinal(context: click.Context, parameter: click.Parameter, text: str) -> int:
    """Return the number of `N`, or of a StatefulSet's pod, whose name ends in `-N`."""
    match = re.fullmatch(r"(?:[a-z0-9][-a-z0-9.]*-)?(\d{1,9})", text, re.ASCII)
    if match is None:
        raise click.BadParameter(
            f"{text!r} is neither a number nor the name of a pod that ends in -N",
            ctx=context,
            param=parameter,
        )
    return int(match[1])


def policy_of(text: str | None) -> FilesystemPolicy | None:
    """Read `--filesystem-policy`.

    Args:
        text: JSON, or the path of a file with JSON or YAML; None for the default policy.

    Raises:
        ConfigError: It is no filesystem policy.
    """
    if text is None:
        return None
    option = "--filesystem-policy"
    if text.lstrip().startswith("{"):
        data = configurations.parse_yaml(text, source=option)
    else:
        data = configurations.read_yaml(Path(text))
    return convert(data, FilesystemPolicy, spelling=Spelling.CAMEL, path=option)


@click.command("check", short_help="Verify what a start of a broker needs.")
@config_option
@data_option
@host_option
@port_option
@port_offset_option
@set_option
@click.option(
    "--filesystem-policy",
    metavar="JSON|FILE",
    help="Which filesystems are taken, as `spec.storage.filesystemPolicy` of a Broker.",
)
@click.option("--owner-name", metavar="NAME", help="Whose volumes they have to be: NAMESPACE/NAME.")
@click.option("--owner-uid", metavar="UID", default="", help="Unique id of that Broker.")
@click.option(
    "--ordinal", callback=_ordinal, default="0", help="Which broker of the set: N, or a pod's name."
)
@click.option("--ephemeral", is_flag=True, help="Losing the data is fine: tmpfs is taken too.")
@click.option(
    "--aio-demand",
    type=click.IntRange(min=0),
    help="AIO requests that are needed (default: `journal-max-io`).",
)
@aio_shortage_option
@click.option(
    "--adopt",
    is_flag=True,
    help="Take files without a stamp, and blank volumes beside full ones, as this broker's.",
)
@click.option(
    "--adopt-volume",
    "adopted",
    multiple=True,
    metavar="NAME",
    help="Take this one volume (`journal`, `paging`, …) as this broker's: blank, without a stamp, "
    "or with the stamp of another broker. May be repeated.",
)
@click.option(
    "--adoptions",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    envvar="VESPIARY_ADOPTIONS",
    show_envvar=True,
    help="A file with the names of such volumes, each with its claim. It may be missing.",
)
@click.option(
    "--termination-message",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Write the short answer there as JSON, for the operator.",
)
@click.option("--json", "is_json", is_flag=True, help="Print everything that was found as JSON.")
def check(
    config: Path | None,
    data: Path | None,
    host: str | None,
    port: int | None,
    port_offset: int,
    overrides: tuple[str, ...],
    filesystem_policy: str | None,
    termination_message: Path | None,
    is_json: bool,
    **options: Any,
) -> int:
    """Verify what a start of the broker needs: its configuration, TLS files, users and volumes.

    Of each volume folder: its filesystem, direct I/O, AIO, flushes, space, whose it is. With
    --termination-message (in an init container) only the volumes are verified, as the broker that
    starts next verifies the rest. What depends on stored queues and messages is left to the start.

    --config takes a broker.yaml or a Broker resource. Missing folders are made where the
    configuration allows it; nothing in them is opened or changed, but with --owner-name (or for a
    Broker) a stamp is left that says whose they are.

    Exit codes: 0 good, 1 refused, 2 usage.
    """
    try:
        policy = policy_of(filesystem_policy)
        asked = _asked(
            config,
            data,
            overrides,
            policy,
            host=host,
            port=port,
            port_offset=port_offset,
            is_start=termination_message is None,
            **options,
        )
    except VespiaryError as error:
        if termination_message is not None:
            refused = summarise((), AioResult(), engine="", refusal=str(error))
            _leave_message(termination_message, refused)
        raise
    report = verification.verify(asked)
    if termination_message is not None:
        _leave_message(termination_message, report.answer)
    if is_json:
        terminal.show_json(report.to_dict())
    else:
        show_report(report)
    return int(report.exit_code)


def _asked(
    config: Path | None,
    data: Path | None,
    overrides: tuple[str, ...],
    policy: FilesystemPolicy | None,
    *,
    host: str | None,
    port: int | None,
    port_offset: int,
    is_start: bool,
    owner_name: str | None,
    owner_uid: str,
    ordinal: int,
    ephemeral: bool,
    aio_demand: int | None,
    aio_shortage: str,
    adopt: bool,
    adopted: tuple[str, ...],
    adoptions: Path | None,
) -> VerificationRequest:
    """Return the question that the options make."""
    document = configurations.read_yaml(config) if config is not None else {}
    if is_resource(document):
        if overrides:
            raise click.UsageError("--set is for a broker.yaml; change the resource instead")
        local = local_broker(
            document,
            data=data,
            host=host or LOOPBACK,
            port=port,
            port_offset=port_offset,
            is_tls_needed=False,
        )
        instance, policy = local.instance, policy or local.policy
        owner_name, ephemeral = owner_name or local.name, ephemeral or local.is_ephemeral
    else:
        instance = load_instance(
            config, data, overrides, host=host, port=port, port_offset=port_offset
        )
    if is_start:
        check_instance(instance, has_tls_files=not is_resource(document))
    asked = request.of_settings(
        instance.configuration,
        base=instance.data,
        policy=policy,
        owner=Owner(name=owner_name, uid=owner_uid, ordinal=ordinal) if owner_name else None,
        adopts=adopt,
        adopted=frozenset((*adopted, *_named(adoptions))),
        is_ephemeral=ephemeral,
        waits_for_aio=aio_shortage == "wait",
    )
    if aio_demand is not None:
        asked = msgspec.structs.replace(asked, aio_demand=aio_demand)
    return asked


def check_instance(instance: Instance, *, has_tls_files: bool = True) -> None:
    """Reject what `run` would reject before it opens the store; name ports that are in use.

    Args:
        instance: The broker.
        has_tls_files: Whether its TLS files are at hand.

    Raises:
        ConfigError: A start would be rejected.
    """
    # The server is imported for this only: `run` imports it while its volumes are verified.
    from vespiary_broker.app.preflight import check_listening, check_start
    from vespiary_broker.app.users_file import UsersFile

    users = UsersFile(instance.users_file)
    check_start(instance.configuration, instance.data, users, has_tls_files=has_tls_files)
    for sentence in check_listening(instance.configuration):
        terminal.show_sentence(sentence)


def _named(adoptions: Path | None) -> tuple[str, ...]:
    """Return the volumes that a file tells to adopt; none if there is no such file.

    Raises:
        ConfigError: It is no mapping of volumes to claims.
    """
    if adoptions is None or not adoptions.exists():
        return ()
    found = configurations.read_yaml(adoptions)
    if not isinstance(found, Mapping):
        raise ConfigError(
            "volumes with their claims are expected here", path=str(adoptions), value=found
        )
    return tuple(map(str, found))


def _leave_message(path: Path, answer: Verification) -> None:
    """Write the termination message; a failure is told, and changes no verdict."""
    try:
        path.write_bytes(encode(answer))
    except OSError as error:
        terminal.show_sentence(f"the termination message cannot be written: {error}")


def show_report(report: Report) -> None:
    """Print what was found, for people."""
    columns = ("volume", "filesystem", "verdict", "direct", "aio", "flush p50#", "p99#", "free#")
    terminal.show_table((*columns, "path"), [_row(volume.result) for volume in report.volumes])
    answer = report.answer
    if not report.volumes:
        terminal.echo("nothing is written to disk: persistence-enabled is false")
    for sentence in report.sentences:
        terminal.echo(sentence)
    aio = answer.aio
    if aio.max_nr is not None and aio.nr is not None:
        terminal.echo(
            f"AIO requests: {aio.demand} needed, {aio.max_nr - aio.nr} free of "
            f"fs.aio-max-nr={aio.max_nr}"
        )
    if answer.engine:
        terminal.echo(f"journal engine: {answer.engine}")
    terminal.echo("refused" if answer.refusal else "good")


def _row(result: VolumeResult) -> tuple[object, ...]:
    free = result.free_bytes
    return (
        result.name,
        result.filesystem or "?",
        result.verdict,
        _FLAGS[result.direct_io],
        _FLAGS[result.aio],
        _micros(result.flush_us_p50),
        _micros(result.flush_us_p99),
        None if free is None else units.format_size_rounded(free),
        result.path,
    )


def _micros(value: int | None) -> str | None:
    return None if value is None else f"{value} µs"
