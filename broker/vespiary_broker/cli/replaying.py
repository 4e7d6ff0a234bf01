"""`vespiary journal replay`: messages of kept journal files, sent to a broker again.

Owns: the command, what is selected, and what a message looks like when it is sent again. Copies are
only read; messages go over STOMP like any others, each confirmed. Called by `journals`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.journal_folders import bindings_in, queue_names
from vespiary_broker.cli.large_bodies import LargeBodies
from vespiary_broker.cli.messaging import (
    connected,
    connection_options,
    routing_headers,
    wait_receipt,
    which,
)
from vespiary_broker.cli.stomp_connection import StompConnection
from vespiary_broker.engine.names import PREFIXES, plain_address
from vespiary_broker.store.disk import Disk
from vespiary_broker.store.history import History
from vespiary_broker.store.opening import OpeningParts
from vespiary_codec.journal.record import AddRecord
from vespiary_codec.wire.stomp import Receipt
from vespiary_codec.wire.stomp.properties import BROKER_HEADERS, parse_properties
from vespiary_spec.errors import VespiaryError

_UNCONFIRMED_MAX: Final = 100
_CONFIRM_S: Final = 30.0
_REPLACED: Final = frozenset({"destination", "destination-type", "_AMQ_DUPL_ID"})
_STOMP: Final = 1
_NAMES_SHOWN: Final = 10


class _Time(click.ParamType):  # type: ignore[type-arg]  # not generic in older releases
    """A time: ISO 8601, in UTC unless it says otherwise; as milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Return the time in milliseconds."""
        if isinstance(value, int):
            return value
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time: write 2026-11-22 or 2026-11-22T06:30:00Z", param, ctx)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return int(when.timestamp() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which messages are wanted; None takes all.

    Attributes:
        from_ms: Arrived at this time or later.
        to_ms: Arrived before this time.
        address: Sent to this address, with or without a prefix.
        queue_ids: Had a place in one of these queues.
        header: Name and value of a header.
    """

    from_ms: int | None = None
    to_ms: int | None = None
    address: str | None = None
    queue_ids: frozenset[int] | None = None
    header: tuple[str, str] | None = None

    def takes(self, add: AddRecord, headers: dict[str, str]) -> bool:
        """Return whether a message is wanted."""
        if self.from_ms is not None and add.arrival_ms < self.from_ms:
            return False
        if self.to_ms is not None and add.arrival_ms >= self.to_ms:
            return False
        ids = self.queue_ids
        if ids is not None and all(place.queue_id not in ids for place in add.places):
            return False
        if self.header is not None and headers.get(self.header[0]) != self.header[1]:
            return False
        sent_to = headers.get("destination", "")
        return self.address in (None, plain_address(sent_to, *PREFIXES), sent_to)


@dataclass(slots=True)
class Outcome:
    """What a replay did.

    Attributes:
        selected: Messages that were wanted.
        skipped: Those of them passed over by `--skip`.
        confirmed: Those that the broker confirmed.
        unrouted: Those of them that no queue accepted.
        lost: Those whose large body is kept nowhere, or is damaged.
    """

    selected: int = 0
    skipped: int = 0
    confirmed: int = 0
    unrouted: int = 0
    lost: int = 0


def _filter(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Any:
    if text is None:
        return None
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"it is 'header = value', not {text!r}")
    return name.strip(), value.strip()


def _headers(add: AddRecord) -> dict[str, str]:
    """Return the headers of a stored message; of a repeated one the first counts."""
    found: dict[str, str] = {}
    for name, value in parse_properties(add.properties):
        found.setdefault(name, value)
    return found


def resent_headers(add: AddRecord, headers: dict[str, str]) -> list[tuple[str, str]]:
    """Return the headers of a message that is sent again.

    Its duplicate id is that of its place, so that what is sent twice arrives once. Headers that
    only the broker writes are left out: it takes them from nobody.
    """
    place = add.places[0]
    kept = [
        (name, value)
        for name, value in headers.items()
        if name not in _REPLACED and not name.startswith(BROKER_HEADERS)
    ]
    kept.append(("original-destination", headers.get("destination", "")))
    kept.append(("_AMQ_DUPL_ID", f"replay-{place.queue_id}-{place.sequence}-{add.arrival_ms}"))
    if add.priority != 4:
        kept.append(("priority", str(add.priority)))
    return kept


@click.command("replay", short_help="Send messages of kept journal files again.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="RETENTION_DIR")
@click.option("--from", "from_ms", type=_Time(), metavar="TIME", help="Arrived then or later.")
@click.option("--to", "to_ms", type=_Time(), metavar="TIME", help="Arrived before then.")
@click.option("--address", help="Sent to this address.")
@click.option("--queue", help="With a place in the queue of this name or number.")
@click.option(
    "--bindings",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Bindings that know the name of --queue. Default: bindings, beside RETENTION_DIR.",
)
@click.option(
    "--filter", "header", callback=_filter, metavar="'NAME = VALUE'", help="With this header."
)
@click.option("--target", metavar="DEST", help="Where to send them, such as /queue/again.")
@click.option("--dry-run", is_flag=True, help="Count, and send nothing.")
@click.option(
    "--skip", type=click.IntRange(min=0), default=0, help="Pass over the first so many selected."
)
@click.option(
    "--large-messages",
    "large",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Bodies of large messages that are still there. Default: large-messages, beside "
    "RETENTION_DIR.",
)
@connection_options
@click.option("--json", "is_json", is_flag=True, help="Print the outcome as JSON.")
def replay_command(
    folder: Path,
    from_ms: int | None,
    to_ms: int | None,
    address: str | None,
    queue: str | None,
    bindings: Path | None,
    header: tuple[str, str] | None,
    target: str | None,
    dry_run: bool,
    skip: int,
    large: Path | None,
    topic: bool,
    url: str,
    password_file: Path | None,
    ca: Path | None,
    is_json: bool,
) -> None:
    """Send the messages in RETENTION_DIR (kept copies of journal files) to DEST.

    Each message is sent once, in the order of commits; those of transactions that were not
    committed are not. Copies are only read. Times are ISO 8601, in UTC unless they say otherwise,
    and are those of arrival. What was interrupted goes on with the --skip that it printed.
    """
    if target is None and not dry_run:
        raise click.UsageError("replay needs --target, or --dry-run")
    queue_ids = None if queue is None else queue_numbers(queue, folder, bindings)
    history = History(folder, Disk(), OpeningParts().verify)
    wanted = Selection(
        from_ms=from_ms, to_ms=to_ms, address=address, queue_ids=queue_ids, header=header
    )
    outcome = Outcome()
    bodies = LargeBodies.find(folder, large)
    chosen = _chosen(history, wanted, skip, outcome, bodies)
    if target is None or dry_run:
        for _ in chosen:
            pass
    else:
        routing = routing_headers(target, topic, "destination-type")
        with connected(url, password_file, ca) as connection:
            _send_all(connection, target, routing, chosen, outcome, bodies)
            connection.disconnect()
    _show(history, outcome, target if not dry_run else None, is_json)


def queue_numbers(queue: str, folder: Path, bindings: Path | None) -> frozenset[int]:
    """Return the numbers of the queues that have or had a name.

    Args:
        queue: Its name, or its number in digits.
        folder: The folder of copies.
        bindings: The folder of the bindings; None takes the one beside the copies.

    Raises:
        CommandFailed: No bindings are there, or none knows the name.
    """
    if queue.isascii() and queue.isdecimal():
        return frozenset({int(queue)})
    place = bindings if bindings is not None else folder.absolute().parent / "bindings"
    found = bindings_in(place)
    names = queue_names(found.former_bindings | found.bindings) if found else {}
    numbers = frozenset(number for number, name in names.items() if name == queue)
    if not numbers:
        known = ", ".join(sorted(set(names.values()))[:_NAMES_SHOWN]) or "none"
        raise terminal.CommandFailed(
            f"the bindings in {place} know no queue {queue} (queues there: {known}). Name the "
            "folder of the broker's bindings with --bindings, or the queue's number: `vespiary "
            "journal print` shows it"
        )
    return numbers


def _chosen(
    history: History, wanted: Selection, skip: int, outcome: Outcome, bodies: LargeBodies
) -> Iterator[tuple[AddRecord, dict[str, str]]]:
    for add in history.messages():
        headers = _headers(add) if add.protocol == _STOMP else {}
        if not wanted.takes(add, headers):
            continue
        outcome.selected += 1
        if outcome.selected <= skip:
            outcome.skipped += 1
        elif add.is_large and (lost := bodies.what_is_wrong(add)):
            outcome.lost += 1
            terminal.show_sentence(f"message {outcome.selected} is passed over: {lost}")
        else:
            yield add, headers


def _send_all(
    connection: StompConnection,
    target: str,
    routing: list[tuple[str, str]],
    chosen: Iterator[tuple[AddRecord, dict[str, str]]],
    outcome: Outcome,
    bodies: LargeBodies,
) -> None:
    """Send and wait for all receipts; never more than a bounded number is on its way."""
    client = connection.client
    under_way: deque[int] = deque()  # their numbers among those selected; receipts come in order

    def advance(count: int) -> None:
        for _ in range(count):
            under_way.popleft()
        outcome.confirmed += count

    def wait(timeout_s: float) -> bool:
        event = wait_receipt(connection, advance, timeout_s)
        outcome.unrouted += isinstance(event, Receipt) and event.is_unrouted
        return event is not None

    try:
        for add, headers in chosen:
            receipt_id = client.new_receipt_id()
            extra = routing + resent_headers(add, headers)
            under_way.append(outcome.selected)
            if add.is_large:
                size_bytes = bodies.size_bytes(add)
                connection.write(client.send_head(target, size_bytes, extra, receipt_id=receipt_id))
                for piece in bodies.pieces(add):
                    connection.write(piece)
                connection.write(b"\0")
            else:
                connection.write(client.send(target, add.body, extra, receipt_id=receipt_id))
            while len(client.unconfirmed) >= _UNCONFIRMED_MAX:
                wait(_CONFIRM_S)
            while wait(0.0):
                pass
        while client.unconfirmed:
            wait(_CONFIRM_S)
    except (Exception, KeyboardInterrupt) as error:
        done = under_way[0] - 1 if under_way else outcome.selected
        cure = f"continue with --skip {done}"
        if isinstance(error, VespiaryError):
            error.cure = f"{error.cure}, then {cure}" if error.cure else cure
        elif isinstance(error, click.ClickException):
            raise terminal.CommandFailed(f"{error.message.rstrip('.')}; {cure}") from error
        else:
            terminal.show_sentence(cure)
        raise


def _show(history: History, outcome: Outcome, target: str | None, is_json: bool) -> None:
    counts = history.counts
    if is_json:
        terminal.show_json(terminal.json_fields(counts) | terminal.json_fields(outcome))
        return
    files = terminal.counted(counts.files, "file")
    found = f"{files}, {terminal.counted(counts.messages, 'message')}"
    skipped = f", {outcome.skipped} skipped" if outcome.skipped else ""
    terminal.echo(f"{found}, {outcome.selected} selected{skipped}")
    if counts.void:
        void = terminal.counted(counts.void, "message")
        terminal.echo(f"{void} of transactions without commit: not replayed")
    if counts.gaps:
        terminal.echo(f"{terminal.counted(counts.gaps, 'place')} where copies are missing")
    if outcome.lost:
        lost = terminal.counted(outcome.lost, "large message")
        terminal.echo(f"{lost} without a whole body: passed over")
    if target is not None:
        line = f"{terminal.counted(outcome.confirmed, 'message')} to {target}: confirmed"
        if outcome.unrouted:
            line += f"; no queue accepted {which(outcome.unrouted, outcome.confirmed)}"
        terminal.echo(line)
