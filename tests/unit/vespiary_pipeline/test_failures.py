"""What Spark throws becomes one sentence, ours where it is ours."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from vespiary_pipeline.jobs.failures import failure_of, spark_failures
from vespiary_spec.errors import ForeignJournal, JobFailed

OURS = ForeignJournal("the file is none of this journal's", where="/data/a.hq:0", cure="move it")
WORKER = f"""\
Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: org.apache.spark.api.\
python.PythonException: Traceback (most recent call last):
  File "/x/source.py", line 1, in read
vespiary_spec.errors.ForeignJournal: {OURS}

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
Caused by: java.lang.IllegalStateException: other
"""
DISK = """\
An error occurred while calling o93.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.Some.where(Some.scala:5)
Caused by: java.io.IOException: Input/output error
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
"""


def test_an_error_of_ours_is_found_again() -> None:
    failure = failure_of(WORKER, "/data")
    assert str(failure) == str(OURS)
    assert failure.to_dict()["code"] == "VSP-J107"
    assert failure.to_dict()["error"] == "ForeignJournal"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DISK, "IOException: Input/output error"),
        ("[PATH_NOT_FOUND] Path does not exist: x. SQLSTATE: 42K03", "[PATH_NOT_FOUND] Path"),
        ("", "it gave no reason"),
    ],
)
def test_a_reason_of_spark_s_own_is_one_line(text: str, reason: str) -> None:
    shown = str(failure_of(text, "/data"))
    assert shown.startswith(f"/data: Spark ended the job: {reason}")
    assert shown.endswith("[VSP-D103]")
    assert "\n" not in shown
    assert "\tat " not in shown


def test_the_cause_is_chained_and_other_errors_pass() -> None:
    cause = PySparkException(message=WORKER)
    with pytest.raises(JobFailed) as caught, spark_failures("/data"):
        raise cause
    assert caught.value.__cause__ is cause
    with pytest.raises(KeyError), spark_failures("/data"):
        raise KeyError("ours to find")


@pytest.mark.parametrize("reason", ["No space left on device", "Disk quota exceeded"])
def test_a_full_disk_is_told_of_the_place_that_is_written(reason: str) -> None:
    text = DISK.replace("Input/output error", reason)
    assert str(failure_of(text, "/data", "/lake")).startswith("/lake: there is no room for what is")
    assert str(failure_of(text, "/data")).startswith("/data: there is no room for what is written")
    assert "SPARK_LOCAL_DIRS" in str(failure_of(text, "/data"))
