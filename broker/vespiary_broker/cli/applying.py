"""`vespiary apply`: run a Broker resource on this machine, without Kubernetes.

Owns the order: the resource is read, every volume verified, and only then is anything started. The
model, the checks and the sentences are those of the operator. Called by `program`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vespiary_broker.app.configuration_source import ConfigurationSource, digests_of
from vespiary_broker.cli import terminal
from vespiary_broker.cli.checking import check_instance, show_report
from vespiary_broker.cli.instance import port_offset_option
from vespiary_broker.cli.resources import LOOPBACK, LocalBroker, is_resource, local_broker
from vespiary_broker.cli.running import LOG_LEVELS, run_instance
from vespiary_broker.store.volumes import request, verification
from vespiary_broker.store.volumes.identity import Owner
from vespiary_broker.store.volumes.report import Report
from vespiary_spec import configuration as configurations
from vespiary_spec.errors import ConfigError


@click.command("apply", short_help="Run a Broker resource on this machine.")
@click.option(
    "-f",
    "--filename",
    "file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A manifest with one Broker.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for its volumes (default: broker-NAME).",
)
@click.option("--check-only", is_flag=True, help="Verify everything, and start nothing.")
@click.option("--host", default=LOOPBACK, show_default=True, help="Address for every listener.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port for all protocols. 0 takes free ports for every listener.",
)
@port_offset_option
@click.option(
    "--tls-folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder with NAME/tls.crt, tls.key and ca.crt for each TLS Secret.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Take files without a stamp, and blank volumes beside full ones, as this broker's.",
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="Least level of log lines.")
@click.option("--json", "is_json", is_flag=True, help="Print events as JSON, one a line.")
def apply(
    file: Path,
    data: Path | None,
    check_only: bool,
    host: str,
    port: int | None,
    port_offset: int,
    tls_folder: Path | None,
    adopt: bool,
    log_level: str | None,
    is_json: bool,
) -> int:
    """Run the Broker of FILE in the foreground, as its pod would.

    Its volumes are folders of this machine and get the same verification: a refused one is not
    touched, and nothing starts. Fields that mean something in Kubernetes only are named.

    Exit codes: 0 good, 1 refused.
    """
    digests = digests_of((file,))
    document = configurations.read_yaml(file)
    if not is_resource(document):
        raise ConfigError(
            "this is no Kubernetes resource",
            path=str(file),
            allowed="a manifest with `kind: Broker`",
            cure=f"run a broker.yaml with `vespiary run -c {file}`",
        )

    def local_of(found: Any) -> LocalBroker:
        return local_broker(
            found,
            data=data,
            tls_folder=tls_folder,
            host=host,
            port=port,
            port_offset=port_offset,
        )

    local = local_of(document)
    for remark in local.remarks:
        terminal.show_sentence(remark)
    if check_only:
        check_instance(local.instance)
    report = _verify(local, adopts=adopt)
    if is_json:
        terminal.show_json({"event": "verified", **report.to_dict()})
    else:
        show_report(report)
    report.raise_if_refused()
    if check_only:
        return 0
    return run_instance(
        local.instance,
        policy=local.policy,
        is_ephemeral=local.is_ephemeral,
        is_json=is_json,
        log_level=log_level,
        source=ConfigurationSource(
            files=(file,),
            digests=digests,
            read=lambda: local_of(configurations.read_yaml(file)).instance.configuration,
        ),
    )


def _verify(local: LocalBroker, *, adopts: bool) -> Report:
    asked = request.of_settings(
        local.instance.configuration,
        policy=local.policy,
        owner=Owner(name=local.name),
        adopts=adopts,
        is_ephemeral=local.is_ephemeral,
    )
    return verification.verify(asked)
