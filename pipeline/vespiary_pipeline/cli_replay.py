"""`vespiary-pipeline replay`: messages of files, sent to a broker again.

Owns the command and its options. Called by `cli`.
"""

from __future__ import annotations

import datetime
import json
import sys
from typing import Any

import click

from vespiary_pipeline.cli_common import max_body_option, source_options, told, working


class _Time(click.ParamType):  # type: ignore[type-arg]  # not generic in older releases
    """A time: ISO 8601, in UTC unless it says otherwise."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime.datetime:
        """Return the time."""
        if isinstance(value, datetime.datetime):
            return value
        try:
            when = datetime.datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time: write 2026-11-22 or 2026-11-22T06:30:00Z", param, ctx)
        return when if when.tzinfo else when.replace(tzinfo=datetime.UTC)


def _header(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Any:
    if text is None:
        return None
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"it is 'name = value', not {text!r}")
    return name.strip(), value.strip()


@click.command()
@source_options
@click.option("--from", "since", type=_Time(), metavar="TIME", help="Arrived then or later.")
@click.option("--to", "until", type=_Time(), metavar="TIME", help="Arrived before then.")
@click.option("--address", help="Sent to this address.")
@click.option("--queue", help="With a place in the queue of this name or number.")
@click.option("--filter", "header", callback=_header, metavar="'NAME = VALUE'",
              help="With this header.")  # fmt: skip
@click.option("--target", default="", help="Address that they are sent to.")
@click.option("--url", default="", help="HTTP listener of the broker, http://user@host:port.")
@click.option("--stomp-url", default="", help="Its STOMP listener.  [default: same host, 61613]")
@click.option("--password-file", default="", help="File with the user's password.")
@click.option("--topic", is_flag=True, help="Send to all subscriptions of the address.")
@click.option("--delivery", type=click.Choice(["fenced", "dedup", "plain"]), default="fenced",
              show_default=True, help="What is promised if it is interrupted.")  # fmt: skip
@click.option("--write-id", default="", help="Name: another replay of this name sends nothing.")
@click.option("--tasks", type=click.IntRange(1), default=1, show_default=True,
              help="How many tasks send; one keeps the order.")  # fmt: skip
@max_body_option
@click.option("--dry-run", is_flag=True, help="Count, and send nothing.")
@told
def replay(
    path: str,
    snapshot: str,
    on_corrupt: str,
    is_json: bool,
    target: str,
    url: str,
    tasks: int,
    dry_run: bool,
    **given: Any,
) -> None:
    """Send messages of a journal, of kept copies or of exports to a broker again.

    All or none of them arrive with --delivery fenced, whatever is killed in between. Members of
    transactions that were not committed are not sent. Times are ISO 8601, in UTC unless they say
    otherwise, and are those of arrival.
    """
    if not dry_run and not (target and url):
        raise click.UsageError("replay needs --target and --url, or --dry-run")
    done = _replayed(
        path, snapshot, on_corrupt, _sink(target, url, given), given, tasks=tasks, is_dry=dry_run,
        is_json=is_json,
    )  # fmt: skip
    if is_json:
        click.echo(json.dumps(done._asdict()))
    elif dry_run:
        click.echo(f"{path}: {done.selected} messages would be sent")
    else:
        click.echo(f"{path}: {done.sent} of {done.selected} messages sent to {target}")
    if done.lost:
        click.echo(
            f"vespiary-pipeline: {path}: {done.lost} messages cannot be sent, as their bodies are"
            f" lost, damaged or larger than {given['max_body_bytes']} (--max-body-bytes)",
            err=True,
        )
        sys.exit(1)


def _sink(target: str, url: str, given: dict[str, Any]) -> dict[str, str]:
    """Return the options of the sink; those that are not said are left to it."""
    wanted = {
        "address": target,
        "url": url,
        "stompUrl": given["stomp_url"],
        "passwordFile": given["password_file"],
        "delivery": given["delivery"],
        "writeId": given["write_id"],
        "routingType": "multicast" if given["topic"] else "anycast",
    }
    return {name: value for name, value in wanted.items() if value}


def _replayed(
    path: str,
    snapshot: str,
    on_corrupt: str,
    sink: dict[str, str],
    given: dict[str, Any],
    *,
    tasks: int,
    is_dry: bool,
    is_json: bool,
) -> Any:
    from vespiary_pipeline.jobs.replaying import Selection, check_source, replay
    from vespiary_pipeline.sink.connection import check_broker
    from vespiary_pipeline.sink.sink_options import read_sink_options

    options = {"onCorrupt": on_corrupt, "maxBodyBytes": given["max_body_bytes"]} | (
        {"snapshot": snapshot} if snapshot else {}
    )
    check_source(path, options)  # before Spark takes its seconds
    if not is_dry:
        check_broker(read_sink_options(sink))
    wanted = Selection(
        **{name: given[name] for name in ("since", "until", "address", "queue", "header")}
    )
    doing = "counting" if is_dry else "replaying"
    with working(f"{doing} {path}", is_json=is_json) as spark:
        return replay(spark, path, wanted, sink, options, tasks=tasks, is_dry=is_dry)
