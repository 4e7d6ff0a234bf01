"""The command line `vespiary`: `main` is its entry, `program` its table of commands.

Must never import anything at the top: a command pays for what it uses, so that `run` starts fast.
"""

from __future__ import annotations


def main() -> int:
    """Run the command line with the process's arguments; return its exit code."""
    import sys

    from vespiary_broker.cli.program import run_program
    from vespiary_broker.cli.terminal import open_closed_streams

    open_closed_streams()
    return run_program(sys.argv[1:])
