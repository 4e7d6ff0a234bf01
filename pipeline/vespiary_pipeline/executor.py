"""`python -m vespiary_pipeline.executor`: an executor of Spark's own Kubernetes scheduler.

Owns: the Java command line of an executor, from the variables that Spark's scheduler gives its pods
(`BasicExecutorFeatureStep`); Spark's own images have a shell script for it. Must never decide
anything. Called by: the pod template that `archive_run` is given.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from vespiary_pipeline.named_user import name_user
from vespiary_spec.errors import SparkUnusable

_BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTIONS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_JAVA_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_(\d+)")


def command(environment: Mapping[str, str], spark_home: Path) -> list[str]:
    """Return the command line of an executor.

    Args:
        environment: The variables of the pod.
        spark_home: Folder that has Spark's `jars`.

    Raises:
        SparkUnusable: A variable is missing: nobody but Spark's scheduler starts executors.
    """
    missing = {*_OPTIONS.values(), "SPARK_EXECUTOR_MEMORY"} - environment.keys()
    if missing:
        raise SparkUnusable(
            f"an executor is started by Spark's Kubernetes scheduler, which sets {min(missing)}",
            cure="ask for executors in spec.executors of a JournalArchive",
        )
    home = environment.get("JAVA_HOME")
    found = _JAVA_OPTION.fullmatch
    options = sorted((int(m[1]), text) for name, text in environment.items() if (m := found(name)))
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    classes = [str(spark_home / "jars" / "*"), environment.get("SPARK_CLASSPATH", "")]
    return [
        f"{home}/bin/java" if home else "java",
        *(text for _, text in options),
        *(f"-Xms{memory}", f"-Xmx{memory}"),
        *("-cp", os.pathsep.join(filter(None, classes))),
        _BACKEND,
        *(part for option, name in _OPTIONS.items() for part in (option, environment[name])),
    ]


def main() -> None:
    """Become the executor."""
    import pyspark

    try:
        found = command(os.environ, Path(pyspark.__file__).parent)
    except SparkUnusable as error:
        sys.exit(str(error))
    name_user(Path(tempfile.gettempdir()))
    os.execvp(found[0], found)  # noqa: S606 - the process is the container's


if __name__ == "__main__":
    main()
