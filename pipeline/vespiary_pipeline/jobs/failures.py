"""From what Spark throws to one sentence.

Owns: how an error of ours is found again in the text that Spark wraps it into, and what is said of
Spark's own. Must never hide the cause: it is chained. Called by the jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from vespiary_spec.errors import JobFailed

_OURS: Final = re.compile(r"vespiary_spec\.errors\.(\w+): ([^\n]+?)\.? \[(VSP-[A-Z]\d+)\]")
_CAUSE: Final = re.compile(r"^(?:Caused by|: )[: ]*(?:[a-z]\w*\.)*(\S[^\n]*)", re.MULTILINE)
_CALLING: Final = "An error occurred while calling "


@contextmanager
def spark_failures(where: str) -> Iterator[None]:
    """Say in a sentence why Spark ended what goes on in the block.

    Args:
        where: The path that the job works on, for errors that name none.

    Raises:
        JobFailed: Spark ended it. If the reason is an error of ours, raised in a process of
            Spark's, name, sentence and code are those of that error.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise failure_of(str(error), where) from error


def failure_of(text: str, where: str) -> JobFailed:
    """Return what a text of Spark's says.

    Args:
        text: Message and stack traces.
        where: Named if the text holds no error of ours.
    """
    if found := _OURS.search(text):
        name, sentence, code = found.groups()
        told: JobFailed = type(name, (JobFailed,), {"code": code})(sentence)
        return told
    causes: list[str] = _CAUSE.findall(text)
    lines = [line for line in text.splitlines() if line and not line.startswith(_CALLING)]
    reason = causes[-1] if causes else (lines or ["it gave no reason"])[0]
    return JobFailed(
        f"Spark ended the job: {reason.rstrip('.')}",
        where=where,
        cure="act on the reason and repeat the job; set VESPIARY_DEBUG=1 to see all of it",
    )
