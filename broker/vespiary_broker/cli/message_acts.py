"""`vespiary queue move`, `copy`, `remove`, …: acts on the messages that wait in a queue.

Owns: these commands, the choice of messages on the command line, and the wait for the task that the
broker makes of each. Must never touch a message: the broker does. Called by `queues`, which has
them as its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import confirm, yes_option
from vespiary_broker.cli.api_client import ApiClient, api_options, segment
from vespiary_spec.errors import QuantityError
from vespiary_spec.units import parse_duration_ns

_WAIT_S: Final = 2
_NS_PER_MS: Final = 1_000_000

F = TypeVar("F", bound=Callable[..., Any])


def choice_options(function: F) -> F:
    """Add the options that choose messages, and those of every command that begins a task."""
    for option in (
        api_options,
        click.option(
            "--no-wait", is_flag=True, help="Begin it and return; see `vespiary task list`."
        ),
        click.option("--limit", type=click.IntRange(min=1), help="At most so many messages."),
        click.option(
            "--id", "ids", multiple=True, help="Only this message (`message-id`); may be repeated."
        ),
        click.option("--filter", "filter_text", metavar="SELECTOR", help="Only what matches."),
    ):
        function = option(function)
    return function


def _is_chosen(options: dict[str, Any]) -> bool:
    return bool(options["filter_text"] or options["ids"] or options["limit"])


def _what(name: str, options: dict[str, Any]) -> str:
    """Return words for the messages that a question is about."""
    return f"the chosen messages of {name}" if _is_chosen(options) else f"all messages of {name}"


def _act(name: str, act: str, sentence: str, options: dict[str, Any], **fields: Any) -> None:
    """Begin a task, wait for its end, and say what it came to.

    Args:
        name: Name of the queue.
        act: Last word of the operation's path.
        sentence: What is said behind the number of messages.
        options: As `choice_options` gave them.
        **fields: Fields of the body beside those.

    Raises:
        CommandFailed: It failed, or was cancelled.
    """
    body = dict(fields)
    if options["filter_text"]:
        body["filter"] = options["filter_text"]
    if options["ids"]:
        body["messages"] = list(options["ids"])
    if options["limit"]:
        body["limit"] = options["limit"]
    client = ApiClient(options["api_url"], options["password_file"])
    is_json, is_waiting = options["is_json"], not options["no_wait"]
    query = {"wait": _WAIT_S if is_waiting else 0}
    task = client.call("POST", f"/queues/{segment(name)}/{act}", body, query)
    if is_waiting and task["state"] == "running":
        task = wait_for_task(client, task)
    if is_json:
        terminal.show_json(task)
    elif task["state"] == "running":
        terminal.echo(f"task {task['id']} goes on: {act} {name}")
    elif task["state"] == "done":
        terminal.echo(f"{terminal.counted(task['messages'], 'message')} {sentence}{_outcome(task)}")
        if task["kept"]:
            why = task["keptReason"] or "no queue takes them"
            terminal.echo(f"{task['kept']} stay: {why}", err=True)
    if task["state"] in ("failed", "cancelled"):
        done = f"done before: {terminal.counted(task['messages'], 'message')}"
        raise terminal.CommandFailed(
            f"task {task['id']} {task['state']}: {task['reason']} ({done})"
        )


def _outcome(task: dict[str, Any]) -> str:
    """Return what became of messages that left by the rules of their address."""
    if task["act"] == "send-to-dead-letter":
        return f" {task['to']}"
    if task["act"] != "expire":
        return ""
    if not task["to"]:
        return ": deleted, as no other expiry address is set"
    return f": sent to {task['to']}; those that no queue there takes were deleted"


def wait_for_task(client: ApiClient, task: dict[str, Any]) -> dict[str, Any]:
    """Wait until a task has ended, with its progress on a terminal; return how it is then."""
    total, shown = max(task["total"], task["looked"]), task["looked"]
    with terminal.progress(f"{task['act']} {task['queue']}", total) as advance:
        advance(shown)
        while task["state"] == "running":
            task = client.call("GET", f"/tasks/{task['id']}", query={"wait": _WAIT_S})
            advance(task["looked"] - shown)
            shown = task["looked"]
    return task


@click.command("move", short_help="Move messages to another queue.")
@click.argument("name")
@click.argument("to")
@yes_option
@choice_options
def move(name: str, to: str, yes: bool, **options: Any) -> None:
    """Move messages that wait in the queue NAME to the queue TO, and name where they come from.

    `vespiary queue retry TO` brings them back. Those that consumers hold stay.
    """
    confirm(f"Move {_what(name, options)} to {to}?", yes)
    _act(name, "move", f"moved from {name} to {to}", options, to=to)


@click.command("copy", short_help="Copy messages to another queue.")
@click.argument("name")
@click.argument("to")
@choice_options
def copy(name: str, to: str, **options: Any) -> None:
    """Copy messages that wait in the queue NAME to the queue TO."""
    _act(name, "copy", f"copied from {name} to {to}", options, to=to)


@click.command("change-expiry", short_help="Change when messages expire.")
@click.argument("name")
@click.option("--in", "time_to_live", metavar="DURATION", help="So long from now, as in 90s or 2h.")
@click.option(
    "--at",
    "expires_ms",
    type=click.IntRange(min=1),
    metavar="MILLISECONDS",
    help="Then, in milliseconds since 1970.",
)
@click.option("--never", is_flag=True, help="They live for ever.")
@yes_option
@choice_options
def change_expiry(
    name: str,
    time_to_live: str | None,
    expires_ms: int | None,
    never: bool,
    yes: bool,
    **options: Any,
) -> None:
    """Change when messages that wait in the queue NAME expire; they go to its end.

    Expired messages go to the expiry address of its address; without one they are deleted.
    """
    if (time_to_live is not None) + (expires_ms is not None) + never != 1:
        raise click.UsageError("give one of --in, --at and --never")
    fields: dict[str, Any] = {"expiresMs": 0 if never else expires_ms}
    if time_to_live is not None:
        try:
            fields = {"timeToLiveMs": parse_duration_ns(time_to_live) // _NS_PER_MS}
        except QuantityError as error:
            raise click.UsageError(f"--in: {error}") from error
    question = f"Change when {_what(name, options)} expire?"
    confirm(f"{question} Without an expiry address, expired messages are deleted.", yes or never)
    _act(name, "change-expiry", f"of {name}: expiry changed", options, **fields)


@click.command("change-priority", short_help="Change the priority of messages.")
@click.argument("name")
@click.argument("priority", type=click.IntRange(0, 9))
@choice_options
def change_priority(name: str, priority: int, **options: Any) -> None:
    """Give messages that wait in the queue NAME a PRIORITY, 0 to 9; they go to its end."""
    sentence = f"of {name}: priority changed to {priority}"
    _act(name, "change-priority", sentence, options, priority=priority)


@click.command("remove", short_help="Remove some of the messages that wait in a queue.")
@click.argument("name")
@yes_option
@choice_options
def remove(name: str, yes: bool, **options: Any) -> None:
    """Remove messages that wait in the queue NAME, chosen by --filter, --id or --limit.

    `vespiary queue purge` removes all of them at once.
    """
    if not _is_chosen(options):
        raise click.UsageError("say which: --filter, --id or --limit; `queue purge` removes all")
    confirm(f"Remove {_what(name, options)}?", yes)
    _act(name, "remove", f"removed from {name}", options)


@click.command("retry", short_help="Move dead letters back to where they came from.")
@click.argument("name")
@choice_options
def retry(name: str, **options: Any) -> None:
    """Move the messages that wait in the dead letter queue NAME back to their queues.

    Messages whose queue is gone stay, and the answer names the commands that make such queues.
    Messages that were never moved stay as well.
    """
    _act(name, "retry", f"of {name} moved back", options)


@click.command("send-to-dead-letter", short_help="Make dead letters of the messages that wait.")
@click.argument("name")
@yes_option
@choice_options
def send_to_dead_letter(name: str, yes: bool, **options: Any) -> None:
    """Move messages that wait in the queue NAME to its dead letter address."""
    confirm(f"Move {_what(name, options)} to the dead letter address?", yes)
    _act(name, "send-to-dead-letter", f"of {name} moved to the dead letter address", options)


@click.command("expire", short_help="Let the messages that wait expire.")
@click.argument("name")
@yes_option
@choice_options
def expire(name: str, yes: bool, **options: Any) -> None:
    """Let messages that wait in the queue NAME expire.

    They go to the expiry address of its address; without one they are deleted.
    """
    confirm(f"Let {_what(name, options)} expire? Without an expiry address they are deleted.", yes)
    _act(name, "expire", f"of {name} expired", options)


@click.command("deliver-scheduled", short_help="Deliver scheduled messages now.")
@click.argument("name")
@choice_options
def deliver_scheduled(name: str, **options: Any) -> None:
    """Have scheduled messages of the queue NAME delivered now; they go to its end."""
    _act(name, "deliver-scheduled", f"of {name} made due", options)


@click.command("count", short_help="Count the messages of a queue that match a selector.")
@click.argument("name")
@click.option("--filter", "filter_text", metavar="SELECTOR", help="Only messages that match.")
@api_options
def count(
    name: str, filter_text: str | None, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """Count the messages of the queue NAME, those that consumers hold included."""
    client = ApiClient(api_url, password_file)
    path = f"/queues/{segment(name)}/count"
    found, after = 0, None
    while True:
        answer = client.call("GET", path, query={"filter": filter_text, "after": after})
        found += answer["messages"]
        after = answer["next"]
        if after is None:
            break
    if is_json:
        terminal.show_json({"messages": found})
    else:
        terminal.echo(str(found))


MESSAGE_COMMANDS: Final = (
    *(move, copy, change_expiry, change_priority, remove),
    *(retry, send_to_dead_letter, expire, deliver_scheduled, count),
)
