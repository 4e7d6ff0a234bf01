"""The program `vespiary`: which commands there are, and how each of them may end.

Owns: the table of commands, the grouped help, and the way from an exception to a sentence and an
exit code. Commands are imported when they are used. Must never print a traceback, unless
VESPIARY_DEBUG is set. Called by `main`; tests call `run_program` with arguments.

Exit codes: 0 good, 1 found bad or refused, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import click

from vespiary_broker.cli import terminal
from vespiary_spec.errors import VespiaryError
from vespiary_spec.version import VERSION

GOOD: Final = 0
FOUND_BAD: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
DEBUG_VARIABLE: Final = "VESPIARY_DEBUG"

BROKER: Final = "Broker"
MESSAGES: Final = "Messages"
ADMINISTRATION: Final = "Administration"
JOURNALS: Final = "Journals"
OTHERS: Final = "More"


class CommandEntry(NamedTuple):
    """One command.

    Attributes:
        name: What users type.
        place: `module:attribute` below `vespiary_broker.cli`.
        section: Heading that it stands under in the help.
        summary: Its line in the help; the command's own short help is the same.
    """

    name: str
    place: str
    section: str
    summary: str


COMMANDS: Final = (
    CommandEntry("run", "running:run", BROKER, "Run a broker in the foreground."),
    CommandEntry("apply", "applying:apply", BROKER, "Run a Broker resource on this machine."),
    CommandEntry("create", "creating:create", BROKER, "Make the folder of a new broker."),
    CommandEntry("check", "checking:check", BROKER, "Verify what a start of a broker needs."),
    CommandEntry("send", "messaging:send", MESSAGES, "Send a message, or many."),
    CommandEntry("receive", "messaging:receive", MESSAGES, "Receive and acknowledge messages."),
    CommandEntry(
        "browse",
        "browsing:browse",
        MESSAGES,
        "Look at the messages of a queue, and leave them there.",
    ),
    CommandEntry(
        "queue",
        "queues:queue",
        ADMINISTRATION,
        "List, show, create, change, pause, purge and delete queues.",
    ),
    CommandEntry(
        "address",
        "addresses:address",
        ADMINISTRATION,
        "List, show, create, change, pause and delete addresses.",
    ),
    CommandEntry(
        "connection",
        "clients:connection",
        ADMINISTRATION,
        "List and close connections of clients.",
    ),
    CommandEntry("consumer", "clients:consumer", ADMINISTRATION, "List consumers of queues."),
    CommandEntry(
        "task",
        "tasks:task",
        ADMINISTRATION,
        "Acts on messages in the background: list, show, cancel.",
    ),
    CommandEntry(
        "drain",
        "draining:drain",
        ADMINISTRATION,
        "Move all messages of a broker to another one.",
    ),
    CommandEntry("divert", "diverts:divert", ADMINISTRATION, "List, create and delete diverts."),
    CommandEntry(
        "jms",
        "jms:jms",
        ADMINISTRATION,
        "JMS queues, topics, connection factories and JNDI names.",
    ),
    CommandEntry(
        "stream",
        "streams:stream",
        ADMINISTRATION,
        "Queues that are read by ranges: list, claim, delete.",
    ),
    CommandEntry(
        "fence",
        "fences:fence",
        ADMINISTRATION,
        "Batches that writers stage: list, delete.",
    ),
    CommandEntry(
        "transaction",
        "transactions:transaction",
        ADMINISTRATION,
        "Distributed transactions in doubt: list, decide, forget.",
    ),
    CommandEntry(
        "status",
        "status:status",
        ADMINISTRATION,
        "Say whether a broker takes messages.",
    ),
    CommandEntry(
        "configuration",
        "configuring:configuration",
        ADMINISTRATION,
        "Show and reload the configuration of a broker.",
    ),
    CommandEntry("user", "users:user", ADMINISTRATION, "Add, remove and list users."),
    CommandEntry("journal", "journals:journal", JOURNALS, "Look at journals on disk."),
    CommandEntry("page", "pages:page", JOURNALS, "Look at page files on disk."),
    CommandEntry(
        "export-journal",
        "journal_text:export_journal_command",
        JOURNALS,
        "Write a journal as text.",
    ),
    CommandEntry(
        "import-journal",
        "journal_text:import_journal_command",
        JOURNALS,
        "Make a journal from text.",
    ),
    CommandEntry(
        "disk-benchmark",
        "disk_benchmark:disk_benchmark",
        JOURNALS,
        "Measure a disk for the journal.",
    ),
    CommandEntry("crd", "definitions:crd", OTHERS, "Print the CustomResourceDefinitions."),
    CommandEntry("version", "definitions:version", OTHERS, "Print the version."),
    CommandEntry(
        "compatibility",
        "definitions:compatibility",
        OTHERS,
        "Print which formats of files are read and written.",
    ),
)


class Program(click.Group):
    """The top of the command line; loads a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's interface)
        """Return the names of all commands."""
        return [entry.name for entry in COMMANDS]

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        """Return a command, imported now; None if there is none of that name."""
        for entry in COMMANDS:
            if entry.name == cmd_name:
                module_name, _, attribute = entry.place.partition(":")
                module = importlib.import_module(f"vespiary_broker.cli.{module_name}")
                command: click.Command = getattr(module, attribute)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is asked for, or suggest one of a similar name.

        Raises:
            click.UsageError: There is none of that name.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if near and "Did you mean" not in error.message:
                hint = f"{error.message} Did you mean {near[0]!r}?"
                raise click.UsageError(hint, ctx) from error
            raise

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the commands under their headings, without importing any."""
        for section in dict.fromkeys(entry.section for entry in COMMANDS):
            with formatter.section(section):
                formatter.write_dl(
                    [(entry.name, entry.summary) for entry in COMMANDS if entry.section == section]
                )


def _show_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        terminal.echo(f"vespiary {VERSION}")
        context.exit()


@click.command(
    "vespiary",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`vespiary COMMAND --help` explains a command. Exit codes: 0 good, 1 bad, 2 usage.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def program() -> None:
    """Vespiary: a persistent message broker.

    It confirms a message when it would survive a power cut.
    """


def run_program(arguments: Sequence[str], **extra: Any) -> int:
    """Run the command line.

    Args:
        arguments: Arguments without the program's name.
        **extra: Passed on to click's `main`, for tests.

    Returns:
        The exit code.
    """
    is_json = "--json" in arguments
    try:
        result = program.main(list(arguments), prog_name="vespiary", standalone_mode=False, **extra)
    except VespiaryError as error:
        terminal.show_error(error, is_json=is_json)
        return error.exit_code
    except click.UsageError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        terminal.show_failure(error.format_message(), is_json=is_json)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        terminal.show_sentence("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _let_output_go()  # who read it has gone (`| head`)
        return FOUND_BAD
    except Exception as error:
        if isinstance(error, OSError) and _is_output_lost(error):
            terminal.show_sentence(
                f"standard output cannot be written: {error.strerror}. What is there is not whole."
            )
            _let_output_go()
        else:
            _report(error)
        return FOUND_BAD
    return result if isinstance(result, int) else GOOD


def _is_output_lost(error: OSError) -> bool:
    """Return whether it is standard output that takes no more.

    Writes to files of ours fail with a `VespiaryError`, or with the name of the file.
    """
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return is_full and error.filename is None and not sys.stdout.isatty()


def _let_output_go() -> None:
    """Send what is left of the output nowhere: Python must not complain at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: Exception) -> None:
    """Say what nobody expected, and how to report it."""
    import tempfile
    import traceback

    text = traceback.format_exc()
    if os.environ.get(DEBUG_VARIABLE):
        terminal.echo(text, err=True, nl=False)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="vespiary-defect-", suffix=".txt", delete=False
        ) as file:
            file.write(text)
        details = f"the details are in {file.name}"
    except OSError:
        details = f"set {DEBUG_VARIABLE}=1 to see the details"
    terminal.show_sentence(
        f"this is a defect of Vespiary: {what}. Please report it with what you did; {details}."
    )
