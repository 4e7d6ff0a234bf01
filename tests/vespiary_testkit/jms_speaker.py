"""Stock Qpid JMS at the call of a Python test: one Java program that sends, receives and tells.

Owns the program's process (tests/jms, `Speaker`), and the lines by which it is spoken with. What a
message has is told by names: `JMSPriority` and its like, `property.NAME`, `body.NAME` of a map and
`body`; values are pairs of Java's type and text, such as `("int", "7")`, and a list of them where
a name stands more than once. Called by test_jms_conversion.py.
"""

from __future__ import annotations

import queue
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote_plus, unquote_plus

from vespiary_testkit.jms_tests import PROJECT, SOURCES, maven
from vespiary_testkit.waiting import WAIT_S

Value = tuple[str, str]
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
"""Written out: without it Maven finds no plug-in of a short name off line, and does not say why."""
_SOURCE: Final = "Speaker.java"
_START_S: Final = 120.0
_OPTIONS: Final = "?jms.deserializationPolicy.allowList=java.util,java.lang"


def text(value: object) -> Value:
    """Return a string of Java."""
    return "string", str(value)


def program(folder: Path, module: str) -> Path:
    """Have Maven put the client's archives into a folder, and the program beside them; return it.

    Args:
        folder: An empty folder.
        module: `jakarta` or `javax`: which of both APIs.
    """
    project = folder / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("target"))
    archives = folder / "archives"
    maven(project, "-pl", module, f"-DoutputDirectory={archives}", _COPY)
    source = (PROJECT / "jakarta" / SOURCES / _SOURCE).read_text()
    (archives / _SOURCE).write_text(source.replace("jakarta.jms", f"{module}.jms"))
    return archives


class JmsSpeaker:
    """A connection of Qpid JMS with one session. Use as a context manager.

    Args:
        port: The broker's port on loopback.
        archives: Folder with the program and the client's archives.
        options: Further ones of its URL, each behind an `&`.
    """

    def __init__(self, port: int, archives: Path, options: str = "") -> None:
        self.archives = archives
        url = f"amqp://127.0.0.1:{port}{_OPTIONS}{options}"
        self._process = subprocess.Popen(
            [
                "java",
                "-XX:TieredStopAtLevel=1",
                "-Xmx256m",
                "-cp",
                f"{archives}/*",
                archives / _SOURCE,
                url,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="jms-speaker")
        self._reader.start()
        self._wait_s = _START_S  # its first answer comes when it is compiled and connected

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # it ends with its input
        try:
            self._process.wait(WAIT_S)
        finally:
            self._process.kill()
            self._process.wait(WAIT_S)
            self._reader.join()
            self._process.stdout.close()

    def send(self, destination: str, kind: str, said: Mapping[str, Any]) -> None:
        """Send a message, and wait until it is confirmed.

        Args:
            destination: `queue:NAME` or `topic:NAME`.
            kind: Its interface, such as `MapMessage`.
            said: What it has.
        """
        self._call("send", destination, kind, *_words(said))

    @contextmanager
    def receive(self, destination: str) -> Iterator[Any]:
        """Listen to a queue or topic; the value is called for the next message."""
        self._call("listen", destination, destination)
        yield lambda: self.take(destination)
        self._call("leave", destination)

    def take(self, name: str) -> dict[str, Any]:
        """Return the next message of a consumer; `name` is that of a temporary queue, too."""
        words = self._call("take", name)
        told: dict[str, Any] = {}
        for at in range(0, len(words), 3):
            value = (words[at + 1], words[at + 2])
            before = told.get(words[at])
            if before is None:
                told[words[at]] = value
            else:
                told[words[at]] = [*(before if isinstance(before, list) else [before]), value]
        return told

    def call(self, method: str, argument: str = "") -> Value:
        """Call a method of the message that was taken last; return what it returns.

        Args:
            method: Its name, such as `getIntProperty`.
            argument: A string; empty for none.
        """
        _, kind, value = self._call("call", method, argument)
        return kind, value

    def answer(self, said: str) -> None:
        """Send a text to where the message wants its answer that was taken last."""
        self._call("answer", said)

    def _call(self, *words: str) -> list[str]:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(map(quote_plus, words)) + "\n")
        self._process.stdin.flush()
        line = self._lines.get(timeout=self._wait_s)
        assert line, "the Java program has ended: it says why above"
        self._wait_s = 2 * WAIT_S
        answer = [unquote_plus(word) for word in line.rstrip("\n").split("\t")]
        assert answer[0] != "failed", answer
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


def _words(said: Mapping[str, Any]) -> Iterable[str]:
    for name, values in said.items():
        for kind, value in values if isinstance(values, list) else [values]:
            yield from (name, kind, value)
