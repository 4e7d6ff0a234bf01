"""`vespiary queue`: queues of a running broker, by its HTTP API.

Owns: the commands and their tables. Called by `program`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import (
    age_text,
    confirm,
    routing_type_option,
    show_all,
    show_one,
    show_removed,
    yes_option,
)
from vespiary_broker.cli.api_client import ApiClient, api_options, segment
from vespiary_broker.cli.counters import counter_commands, counter_of, show_histories
from vespiary_broker.cli.message_acts import MESSAGE_COMMANDS
from vespiary_broker.cli.queue_choice import FIELDS, OPERATIONS, chosen, columns_of, condition_on
from vespiary_broker.cli.queue_groups import groups
from vespiary_broker.cli.queue_kinds import body_of, kind_options, removes_messages, with_kinds

_QUEUE_COLUMNS: Final = (
    ("queue", "name"),
    ("address", "address"),
    ("type", "routingType"),
    ("state", "state"),
    ("messages#", "messages"),
    ("ready#", "ready"),
    ("delivering#", "delivering"),
    ("scheduled#", "scheduled"),
    ("paged#", "paged"),
    ("unmovable#", "unmovable"),
    ("oldest#", "oldest"),
    ("in/s#", "in"),
    ("out/s#", "out"),
    ("consumers#", "consumers"),
    ("kind", "kind"),
)


@click.group("queue", short_help="List, show, create, change, pause, purge and delete queues.")
def queue() -> None:
    """Queues of a running broker, by its HTTP API."""


@queue.command("list", short_help="List queues.")
@api_options
def list_queues(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """List all queues.

    State is `idle` (no messages), `running`, or why it is not moving; `queue show` and `status` say
    what to do. Unmovable is how often messages could not be moved since the start. Oldest is the
    age of the oldest message; in/s and out/s are messages a second in the last 5 s.
    """
    found = list(ApiClient(api_url, password_file).items("/queues"))
    show_all(found if is_json else _shown(found), _QUEUE_COLUMNS, is_json)


@queue.command("show", short_help="Show one queue.")
@click.argument("name")
@api_options
def show_queue(name: str, api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Show the queue NAME with all its figures."""
    show_one(ApiClient(api_url, password_file).call("GET", f"/queues/{segment(name)}"), is_json)


@queue.command("create", short_help="Create a queue.")
@click.argument("name")
@click.option("--address", help="Its address, made if need be (default: one of the same name).")
@routing_type_option
@click.option("--durable/--no-durable", default=True, help="Survives a restart (default) or not.")
@click.option("--filter", "filter_string", default="", help="Selector that lets messages in.")
@kind_options
@api_options
def create_queue(
    name: str,
    address: str | None,
    routing_type: str,
    durable: bool,
    filter_string: str,
    api_url: str,
    password_file: Path | None,
    is_json: bool,
    **kind: Any,
) -> None:
    """Create the queue NAME; one that exists just so is fine.

    What is not given is what the settings of its address say.
    """
    body = {
        "name": name,
        "address": address,
        "routingType": routing_type.upper(),
        "durable": durable,
        "filterString": filter_string,
        **body_of(kind),
    }
    made = ApiClient(api_url, password_file).call("POST", "/queues", body)
    if is_json:
        terminal.show_json(made)
    else:
        terminal.echo(f"queue {made['name']} of address {made['address']}, {made['routingType']}")


@queue.command("delete", short_help="Delete a queue.")
@click.argument("name")
@click.option("--force", is_flag=True, help="Even if it has messages or consumers.")
@yes_option
@api_options
def delete_queue(
    name: str,
    force: bool,
    yes: bool,
    api_url: str,
    password_file: Path | None,
    is_json: bool,
) -> None:
    """Delete the queue NAME. One with messages or consumers needs --force.

    So does the subscription of an MQTT session, which ends with it.
    """
    confirm(f"Delete the queue {name}{' and all its messages' if force else ''}?", yes)
    client = ApiClient(api_url, password_file)
    query = {"force": str(force).lower()}
    answer = client.call("DELETE", f"/queues/{segment(name)}", query=query)
    show_removed(
        answer,
        f"queue {name} deleted with {terminal.counted(answer['messages'], 'message')}",
        is_json,
    )


@queue.command("update", short_help="Change what is particular about a queue.")
@click.argument("name")
@click.option("--filter", "filter_string", help="Selector that lets messages in; '' for none.")
@kind_options
@yes_option
@api_options
def update_queue(
    name: str,
    filter_string: str | None,
    yes: bool,
    api_url: str,
    password_file: Path | None,
    is_json: bool,
    **kind: Any,
) -> None:
    """Change the queue NAME; what is not given stays, and so do consumers that it has.

    Last values and non-destructiveness change only while it has no consumers. A ring and last
    values remove messages.
    """
    body = {"filterString": filter_string, **body_of(kind)}
    if all(value is None for value in body.values()):
        raise click.UsageError("nothing to change: give --max-consumers or another option")
    if removes_messages(kind):
        confirm(
            f"Update the queue {name}? Messages that are too many for the ring, or that are older "
            "than the last value, are removed.",
            yes,
        )
    client = ApiClient(api_url, password_file)
    show_one(client.call("PATCH", f"/queues/{segment(name)}", body), is_json)


@queue.command("pause", short_help="Give nothing more of a queue to its consumers.")
@click.argument("name")
@click.option("--persist", is_flag=True, help="A restart leaves it paused.")
@api_options
def pause_queue(
    name: str, persist: bool, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """Pause the queue NAME: it takes messages, and its consumers get none until `resume`."""
    client = ApiClient(api_url, password_file)
    query = {"persist": str(persist).lower()}
    answer = client.call("POST", f"/queues/{segment(name)}/pause", query=query)
    lasting = ", also after a restart" if persist else ", until a restart"
    show_removed(answer, f"queue {name} paused{lasting}", is_json)


@queue.command("resume", short_help="Go on with a queue that was paused.")
@click.argument("name")
@api_options
def resume_queue(name: str, api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Go on giving messages of the queue NAME to its consumers."""
    client = ApiClient(api_url, password_file)
    answer = client.call("POST", f"/queues/{segment(name)}/resume")
    held = ", but its address is paused (`vespiary address resume`)" if answer["isPaused"] else ""
    show_removed(answer, f"queue {name} goes on{held}", is_json)


@queue.command("stat", short_help="List queues by a condition, sorted.")
@click.option(
    "--field",
    type=click.Choice(FIELDS),
    default="name",
    show_default=True,
    help="What is compared.",
)
@click.option(
    "--operation",
    type=click.Choice(tuple(OPERATIONS)),
    default="CONTAINS",
    show_default=True,
    help="How it is compared.",
)
@click.option("--value", help="What it is compared with (default: all queues are listed).")
@click.option(
    "--sort", type=click.Choice(FIELDS), default="name", show_default=True, help="What by."
)
@click.option("--descending", is_flag=True, help="Largest first.")
@click.option("--fields", help="Columns, with commas between them (default: those of `list`).")
@click.option(
    "--max-rows", type=click.IntRange(min=1), default=50, show_default=True, help="Most queues."
)
@click.option("--history", is_flag=True, help="What happened in these queues, by hour.")
@api_options
def queue_statistics(
    field: str,
    operation: str,
    value: str | None,
    sort: str,
    descending: bool,
    fields: str | None,
    max_rows: int,
    history: bool,
    api_url: str,
    password_file: Path | None,
    is_json: bool,
) -> None:
    """List queues for which a condition holds.

    Such as --field messages --operation GREATER_THAN --value 1000.
    """
    columns = _QUEUE_COLUMNS if fields is None else columns_of(fields)
    condition = None if value is None else condition_on(field, operation, value)
    client = ApiClient(api_url, password_file)
    found = list(client.items("/queues"))
    shown, count = chosen(found, condition, sort, is_descending=descending, count_max=max_rows)
    if history:
        counters = [counter_of(client, "queues", item["name"]) for item in shown]
        show_histories(counters, is_json=is_json)
        return
    if not is_json:
        shown = _shown(shown)
    elif fields is not None:
        shown = [{key: item[key] for _, key in columns} for item in shown]
    show_all(shown, columns, is_json)
    if count > len(shown):
        terminal.echo(f"{count - len(shown)} more; see --max-rows", err=True)


def _shown(queues: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return queues with what tables show of them beside their figures."""
    return [
        each
        | {
            "oldest": age_text(each["oldestAgeS"]),
            "in": _rate_text(each["inPerS"]),
            "out": _rate_text(each["outPerS"]),
        }
        for each in with_kinds(queues)
    ]


def _rate_text(rate: float | None) -> str | None:
    """Return a rate as a table shows it; None: not known."""
    if rate is None:
        return None
    return f"{rate:.0f}" if rate == 0 or rate >= 10 else f"{rate:.1f}"


@queue.command("purge", short_help="Remove the messages that wait in a queue.")
@click.argument("name")
@yes_option
@api_options
def purge_queue(
    name: str, yes: bool, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """Remove all messages that wait in the queue NAME; those given to consumers stay."""
    confirm(f"Remove all messages that wait in {name}?", yes)
    client = ApiClient(api_url, password_file)
    answer = client.call("POST", f"/queues/{segment(name)}/purge")
    show_removed(
        answer, f"{terminal.counted(answer['messages'], 'message')} removed from {name}", is_json
    )


for _command in (groups, *MESSAGE_COMMANDS, *counter_commands("queues", "queue")):
    queue.add_command(_command)
