"""The Java command line of an executor, from the variables of its pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_pipeline.executor import command
from vespiary_spec.errors import SparkUnusable

POD = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-7",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_EXECUTOR_POD_NAME": "history-exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}
HOME = Path("/spark")


def test_every_variable_has_its_option() -> None:
    found = command(POD, HOME)
    assert found[0] == "java"
    assert {"-Xms1024m", "-Xmx1024m"} <= set(found)
    assert found[found.index("-cp") + 1] == "/spark/jars/*"
    place = found.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    options = dict(zip(found[place + 1 :: 2], found[place + 2 :: 2], strict=True))
    assert options == {
        "--driver-url": POD["SPARK_DRIVER_URL"],
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "spark-7",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "0",
        "--podName": "history-exec-1",
    }


def test_options_of_java_keep_their_order() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-D{number}" for number in (10, 9, 0)}
    found = command({**POD, **options, "JAVA_HOME": "/java", "SPARK_CLASSPATH": "/more"}, HOME)
    assert found[:4] == ["/java/bin/java", "-D0", "-D9", "-D10"]
    assert found[found.index("-cp") + 1] == "/spark/jars/*:/more"


@pytest.mark.parametrize("name", sorted(POD))
def test_who_is_not_started_by_spark_is_told_so(name: str) -> None:
    with pytest.raises(SparkUnusable) as caught:
        command({key: value for key, value in POD.items() if key != name}, HOME)
    assert name in str(caught.value)
    assert "spec.executors" in str(caught.value)
