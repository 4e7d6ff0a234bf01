"""From what Spark throws to one sentence.

Owns: how an error of ours is found again in the text that Spark wraps it into, and what is said of
Spark's own. Must never hide the cause: it is chained. Called by the jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from vespiary_spec.errors import JobFailed

_OURS: Final = re.compile(r"vespiary_spec\.errors\.(\w+): ([^\n]+?)\.? \[(VSP-[A-Z]\d+)\]")
_CAUSE: Final = re.compile(r"^(?:Caused by|: )[: ]*(?:[a-z]\w*\.)*(\S[^\n]*)", re.MULTILINE)
_NO_ROOM: Final = re.compile(r"No space left on device|Disk quota exceeded")
_NO_MEMORY: Final = re.compile(r"\b(?:OutOf\w*)?MemoryError\b")
_CALLING: Final = "An error occurred while calling "


@contextmanager
def spark_failures(where: str, to: str = "") -> Iterator[None]:
    """Say in a sentence why Spark ended what goes on in the block.

    Args:
        where: The path that the job works on, for errors that name none.
        to: The path that it writes to; empty: none.

    Raises:
        JobFailed: Spark ended it. If the reason is an error of ours, raised in a process of
            Spark's, name, sentence and code are those of that error.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise failure_of(str(error), where, to) from error
    except (Py4JError, ConnectionError) as error:
        raise JobFailed(
            "Spark's Java process has ended: it was killed, or had too little memory", where=where,
            cure="give it more (--conf spark.driver.memory=4g) and repeat the job",
        ) from error  # fmt: skip


def failure_of(text: str, where: str, to: str = "") -> JobFailed:
    """Return what a text of Spark's says.

    Args:
        text: Message and stack traces.
        where: Named if the text holds no error of ours.
        to: Named if there is no room; empty: Spark's own files alone are written.
    """
    if found := _OURS.search(text):
        name, sentence, code = found.groups()
        told: JobFailed = type(name, (JobFailed,), {"code": code})(sentence)
        return told
    if _NO_ROOM.search(text):
        return JobFailed(
            "there is no room for what is written, or for the files that Spark has in between",
            where=to or where,
            cure="free space, or name other volumes with --to and SPARK_LOCAL_DIRS, and repeat the"
            " job",
        )
    if _NO_MEMORY.search(text):
        return JobFailed(
            "Spark had too little memory for the job",
            where=where,
            cure="give it more (--conf spark.driver.memory=4g), or leave large bodies out, and"
            " repeat the job",
        )
    causes: list[str] = _CAUSE.findall(text)
    lines = [line for line in text.splitlines() if line and not line.startswith(_CALLING)]
    reason = causes[-1] if causes else (lines or ["it gave no reason"])[0]
    return JobFailed(
        f"Spark ended the job: {reason.rstrip('.')}",
        where=where,
        cure="act on the reason and repeat the job; set VESPIARY_DEBUG=1 to see all of it",
    )
