"""`vespiary transaction`: distributed transactions in doubt on a running broker.

Owns: the commands and their table. Called by `program`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import confirm, show_all, yes_option
from vespiary_broker.cli.api_client import ApiClient, api_options, segment

_COLUMNS: Final = (
    ("xid", "xid"),
    ("state", "state"),
    ("user", "user"),
    ("age s#", "ageS"),
    ("members", "members"),
    ("reason", "reason"),
)


@click.group("transaction", short_help="Distributed transactions in doubt: list, decide, forget.")
def transaction() -> None:
    """Branches of distributed (XA) transactions of a running broker, by its HTTP API.

    A prepared branch waits for its coordinator without end. Deciding in its place is a heuristic
    outcome: the coordinator is told when it comes, and it is remembered until it is forgotten.
    """


@transaction.command("list", short_help="List branches in doubt, and those that were decided.")
@api_options
def list_transactions(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """List prepared branches, those in quarantine, and outcomes that were decided here."""
    items = list(ApiClient(api_url, password_file).items("/transactions"))
    if not is_json:
        for item in items:
            item["ageS"] = f"{item['ageS']:.0f}"
            item["members"] = _members(item["members"])
    show_all(items, _COLUMNS, is_json)


@transaction.command("commit", short_help="Commit a prepared branch without its coordinator.")
@click.argument("xid")
@yes_option
@api_options
def commit(xid: str, yes: bool, api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Commit the prepared branch XID without its coordinator: a heuristic outcome."""
    confirm(f"Commit {xid}, whatever its coordinator decides?", yes)
    _decide("commit", xid, ApiClient(api_url, password_file), is_json)


@transaction.command("rollback", short_help="Roll a prepared branch back without its coordinator.")
@click.argument("xid")
@yes_option
@api_options
def rollback(xid: str, yes: bool, api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Roll the prepared branch XID back without its coordinator: a heuristic outcome."""
    confirm(f"Roll {xid} back, whatever its coordinator decides?", yes)
    _decide("rollback", xid, ApiClient(api_url, password_file), is_json)


@transaction.command("forget", short_help="Forget an outcome that was decided here.")
@click.argument("xid")
@yes_option
@api_options
def forget(xid: str, yes: bool, api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Forget the outcome that was decided on the branch XID: its coordinator knows of it."""
    confirm(f"Forget how {xid} was decided? Its coordinator must know the outcome.", yes)
    ApiClient(api_url, password_file).call("POST", f"/transactions/{segment(xid)}/forget")
    if is_json:
        terminal.show_json({"forgotten": xid})
    else:
        terminal.echo(f"transaction {xid} forgotten")


def _decide(act: str, xid: str, client: ApiClient, is_json: bool) -> None:
    answer: Any = client.call("POST", f"/transactions/{segment(xid)}/{act}")
    if is_json:
        terminal.show_json(answer)
    else:
        terminal.echo(f"transaction {xid}: {answer['state']}")


def _members(members: list[dict[str, Any]]) -> str:
    parts = []
    for member in members:
        counts = [("+", member["added"]), ("-", member["acknowledged"])]
        parts.append(f"{member['queue']} " + " ".join(f"{s}{n}" for s, n in counts if n))
    return ", ".join(parts)
