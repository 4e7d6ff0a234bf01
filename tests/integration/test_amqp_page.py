"""docs/howto/amqp.md does not lie: its examples run as they stand, and its settings exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_broker.engine.users import format_users, make_user
from vespiary_spec.settings import AmqpLimits
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.waiting import WAIT_S

pytestmark = pytest.mark.once

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/amqp.md"


def example(language: str, port: int) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert "5672" in found
    return found.replace("5672", str(port))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    data.mkdir()
    users = data / "users"
    users.write_text(format_users([make_user("alice", "secret")]))
    users.chmod(0o600)
    with BrokerProcess(data, "acceptors.all.protocols=AMQP") as process:
        yield process


def test_the_example_for_python(broker: BrokerProcess) -> None:
    pytest.importorskip("proton", reason="python-qpid-proton is not there: pip builds it")
    code = example("python", broker.port())
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


@pytest.mark.ci
@pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="node or npm is not there"
)
def test_the_example_for_javascript(broker: BrokerProcess, tmp_path: Path) -> None:
    install = ["npm", "install", "--prefer-offline", "--no-audit", "--no-fund", "rhea@3.0.4"]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    (tmp_path / "example.js").write_text(example("javascript", broker.port()))
    done = subprocess.run(
        ["node", "example.js"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_the_settings_that_it_names_exist() -> None:
    names = {name.replace("_", "-") for name in AmqpLimits.__struct_fields__}
    limits = PAGE.read_text().partition("## Limits")[2]
    named = set(re.findall(r"`((?:max|amqp|channel|handle)-[a-z-]+)`", limits))
    assert len(named) > 5
    assert named <= names
