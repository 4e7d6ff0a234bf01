"""What a broker imports before it is ready, by name and never by time: a start pays for nothing
that it does not use.
"""

import os
import subprocess
import sys

import pytest

NOT_NEEDED = {
    "crc32c": "the table does the few sums of a start",
    "importlib.metadata": "the version is a constant",
    "yaml": "there is no configuration file",
    "scramp": "nobody logs in",
    "asn1crypto": "only scramp has it",
    "wsproto": "no WebSocket is opened",
    "h11": "only wsproto has it",
    "rich": "no table is printed",
    "http.client": "nobody is asked",
    "vespiary_spec.gen": "no definitions are made",
    "vespiary_broker.cli.journals": "another command",
    "vespiary_broker.store.disk_benchmark": "another command",
    "vespiary_native.twin": "the native part is at work",
}
"""Modules that take long to import, and why a broker with an empty store needs none of them."""

START = """
import sys
from vespiary_broker.cli import terminal
from vespiary_broker.app import broker

def ready(app, journal):
    print(*sys.modules)
    app.request_stop()

broker.BrokerApp._become_ready = ready
sys.argv = ["vespiary", "run", "--port", "0", "--json", "--data", sys.argv[1]]
from vespiary_broker.cli import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """All modules of a broker at the moment when it becomes ready."""
    data = tmp_path_factory.mktemp("start") / "data"
    done = subprocess.run(
        [sys.executable, "-c", START, str(data)],
        env={key: value for key, value in os.environ.items() if key != "VESPIARY_NATIVE"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("name", NOT_NEEDED)
def test_a_start_imports_no(imported: set[str], name: str):
    assert name not in imported, NOT_NEEDED[name]


def test_the_list_is_of_modules_as_they_are_named_in_a_process(imported: set[str]):
    assert {"vespiary_broker.app.broker", "vespiary_native.core", "msgspec"} <= imported
