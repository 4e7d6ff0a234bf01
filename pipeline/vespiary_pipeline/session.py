"""A Spark session with settings that suit journals, and what it leaves behind.

Owns: the defaults of a session on this machine, the checks of Spark's and Java's versions, the
scratch folder of a session and its end. Must never read a journal. Called by the command line; who
has a session of his own calls `check_spark` with it.

A driver that is killed leaves its scratch folder. So each session has one of its own, with a lock
that goes with the process, and a later session removes those whose lock is free.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vespiary_pipeline.interrupting import ending_children, interruptible
from vespiary_spec.errors import SparkUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_MIN: Final = (4, 2)
SPARK_BELOW: Final = (5, 0)
JAVA_MIN: Final = 17
SCRATCH_PREFIX: Final = "vespiary-spark-"
_LOCK: Final = "lock"
_LOG: Final = "spark.log"
_MIB: Final = 1024 * 1024
_MEMORY_MIN: Final = 1024 * _MIB
_MEMORY_MAX: Final = 8192 * _MIB
_MEMORY_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_JAVA_TIMEOUT_S: Final = 60
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def check_spark(version: str) -> None:
    """Refuse a Spark that the pipeline is not made for.

    Args:
        version: As Spark spells it, such as `4.2.1`.

    Raises:
        SparkUnusable: It is older than 4.2, or 5 and newer.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if not SPARK_MIN <= numbers < SPARK_BELOW:
        raise SparkUnusable(
            "this Spark cannot be used",
            measured=f"Spark {version}",
            allowed="4.2 up to, and without, 5",
            cure="install it: pip install 'vespiary[pipeline]'",
        )


def check_pyspark() -> None:
    """Refuse a Python without PySpark, or with one that the pipeline is not made for.

    Raises:
        SparkUnusable: There is none, or of another version.
    """
    try:
        import pyspark
    except ImportError as error:
        raise SparkUnusable(
            "PySpark is not installed", where=sys.executable,
            cure="install it: pip install 'vespiary[pipeline]'",
        ) from error  # fmt: skip
    check_spark(pyspark.__version__)


def java_release(text: str) -> int:
    """Return the number of a Java release from what `java -version` prints; 0 if it says none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a machine without the Java that Spark needs.

    Args:
        environment: Variables; Spark takes `JAVA_HOME`, then the PATH.

    Raises:
        SparkUnusable: There is no Java, or one before 17.
    """
    cure = "install a Java runtime (on Debian: apt-get install openjdk-17-jre-headless)"
    home = environment.get("JAVA_HOME")
    path = Path(home) / "bin/java" if home else shutil.which("java", path=environment.get("PATH"))
    if path is None or not os.access(path, os.X_OK):
        raise SparkUnusable(
            "Spark needs Java, and there is none",
            where=str(path or ""),
            allowed=f"{JAVA_MIN} or newer",
            cure=f"{cure}, or set JAVA_HOME to one",
        )
    try:
        shown = subprocess.run(  # noqa: S603 - the program that Spark itself would start
            [path, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkUnusable("Java cannot be started", where=str(path), cure=cure) from error
    text = shown.stderr + shown.stdout
    if java_release(text) < JAVA_MIN:
        raise SparkUnusable(
            "this Java cannot be used by Spark",
            where=str(path),
            measured=(text.splitlines() or ["nothing"])[0],
            allowed=f"{JAVA_MIN} or newer",
            cure=f"{cure}, and set JAVA_HOME to it",
        )


def driver_memory(available_bytes: int) -> str:
    """Return the memory of the driver as Spark spells it: a third of what there is, 1 to 8 GiB.

    Args:
        available_bytes: Memory of the machine or the container.
    """
    wanted = min(max(available_bytes // 3, _MEMORY_MIN), _MEMORY_MAX)
    return f"{wanted // _MIB}m"


def memory_bytes(*limit_files: Path) -> int:
    """Return the memory of this machine, or that of its container if that is less.

    Args:
        limit_files: Where the kernel tells the container's limit; none: where control groups of
            version 2 and 1 have it.
    """
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit_file in limit_files or _MEMORY_LIMITS:
        with suppress(OSError, ValueError):
            found = min(found, int(limit_file.read_text()))
    return found


def defaults(scratch: Path, memory: int) -> dict[str, str]:
    """Return the settings of a session on this machine.

    Args:
        scratch: Its own folder.
        memory: Bytes that the machine has.
    """
    return {
        "spark.master": "local[*]",
        "spark.app.name": "vespiary-pipeline",
        "spark.driver.memory": driver_memory(memory),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()}"
            f" -Dderby.system.home={scratch}"
            # For throughput: nobody waits for a single row. It took a tenth to a fifth of the JVM's
            # processor time off reads and exports.
            " -XX:+UseParallelGC"
        ),
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Python's own: without it, workers start the first python3 of the PATH.
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        # An address named 007 stays text when its folder is read back.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.shuffle.partitions": str(max(2, 2 * (os.cpu_count() or 1))),
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for one session; remove it at the end, and those of processes that died.

    Args:
        parent: Where it goes; None takes the first of `SPARK_LOCAL_DIRS`, else the system's place
            for temporary files.
    """
    named = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    place = (parent or Path(named or tempfile.gettempdir())).absolute()
    _sweep(place)
    try:
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=place))
    except OSError as error:
        raise SparkUnusable(
            f"Spark's temporary files can't be made here: {error.strerror}", where=str(place),
            cure="set SPARK_LOCAL_DIRS to a folder with room in which this user may write",
        ) from error  # fmt: skip
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Remove the folders of sessions that are no more; others' folders cannot be opened."""
    for folder in place.glob(f"{SCRATCH_PREFIX}*"):
        # One without a lock file is being made just now.
        with suppress(OSError), (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def local_session(
    settings: Mapping[str, str] | None = None, *, parent: Path | None = None
) -> Iterator[SparkSession]:
    """Start Spark on this machine for as long as the block runs.

    What the JVM writes to standard error, its stack traces first of all, goes to a file in the
    session's folder, not to the terminal.

    Args:
        settings: Spark settings that differ from `defaults`, such as `spark.master`.
        parent: Where its scratch folder goes; None: see `scratch_folder`.

    Raises:
        SparkUnusable: Wrong Spark, wrong Java, or Spark does not start.
    """
    check_pyspark()
    check_java()
    from pyspark.sql import SparkSession

    with scratch_folder(parent) as scratch:
        (scratch / "log4j2.properties").write_text(_LOG4J)
        builder = SparkSession.builder
        chosen = defaults(scratch, memory_bytes()) | dict(settings or {})
        for key, value in chosen.items():
            builder = builder.config(key, value)
        given = {
            "SPARK_LOCAL_DIRS": str(scratch / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # A driver that is not started by spark-submit takes these, not the settings.
            "PYSPARK_PYTHON": chosen["spark.pyspark.python"],
            "PYSPARK_DRIVER_PYTHON": chosen["spark.pyspark.driver.python"],
        }
        kept = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        log = scratch / _LOG
        try:
            with _standard_error_to(log), ending_children():
                session = builder.getOrCreate()
        except Exception as error:
            raise SparkUnusable(
                f"Spark does not start: {_last_line(log, error).rstrip('.')}",
                cure="set VESPIARY_DEBUG=1 to see all of it",
            ) from error
        finally:
            for name, before in kept.items():
                if before is None:
                    del os.environ[name]
                else:
                    os.environ[name] = before
        # It prints a stack trace when its Java ends, the reason of which whoever waits says.
        session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        try:
            with interruptible(session.sparkContext.cancelAllJobs):
                yield session
        finally:
            _stop(session)


def _stop(session: SparkSession) -> None:
    """End Spark, if it has not ended by itself."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, ConnectionError):  # a Java that was killed has nothing to stop
        session.stop()


@contextmanager
def _standard_error_to(log: Path) -> Iterator[None]:
    """Give a file to what is started in the block as its standard error; not with VESPIARY_DEBUG.

    A descriptor, not `sys.stderr`: the JVM inherits it and keeps it.
    """
    if os.environ.get("VESPIARY_DEBUG"):
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _last_line(log: Path, error: Exception) -> str:
    with suppress(OSError):
        for line in reversed(log.read_text(errors="replace").splitlines()):
            # Spark's own script complains last, of what Java has said before.
            if line.strip() and not line.startswith(("\t", " ")) and "/spark-class:" not in line:
                return line.strip()
    return str(error).splitlines()[0] if str(error) else type(error).__name__
