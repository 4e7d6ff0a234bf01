"""docs/howto pages about managing do not lie: their commands run, and all are named."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from vespiary_broker.admin.routes import ROUTES
from vespiary_broker.cli.program import program, run_program
from vespiary_testkit.broker_process import BrokerProcess

HOWTO = Path(__file__).resolve().parents[2] / "docs/howto"
GROUPS = ("queue", "address", "divert", "connection", "consumer", "task")


def commands_of(page: str) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", (HOWTO / page).read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("vespiary ") and " run" not in line]


@pytest.mark.ci
@pytest.mark.parametrize("page", ["managing.md", "addresses.md", "queue-kinds.md"])
def test_the_commands_of_the_page_run(
    tmp_path: Path,
    page: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    commands = commands_of(page)
    assert len(commands) > 5
    with BrokerProcess(tmp_path / "data", "message-counter-enabled=true") as broker:
        monkeypatch.setenv("VESPIARY_API", f"http://127.0.0.1:{broker.port('http')}")
        monkeypatch.setenv("VESPIARY_URL", f"stomp://127.0.0.1:{broker.port()}")
        for command in commands:
            code = run_program(shlex.split(command)[1:])
            assert code == 0, (command, capsys.readouterr())


def test_the_table_names_every_command_and_every_operation_on_messages():
    text = (HOWTO / "managing.md").read_text()
    context = click.Context(program)
    for name in GROUPS:
        group = program.get_command(context, name)
        assert isinstance(group, click.Group)
        for command in group.commands:
            assert re.search(rf"`{name} {command}[ `]", text), f"{name} {command}"
    for route in ROUTES:
        last = route.path.rpartition("/")[2]
        if route.tag in ("messages", "tasks", "queues") and "{" not in last:
            assert re.search(rf"\b{last}`", text), route.path
