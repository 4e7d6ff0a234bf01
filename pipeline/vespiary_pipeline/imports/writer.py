"""The import: a DataFrame to the data folder of a broker that does not run yet.

Owns Spark's calls. Spark makes the writer on the driver and pickles it once; each task writes its
rows below a folder that is staged, and `commit`, on the driver, puts together what the tasks that
count have written, and gives the folder its name. So nothing is to be seen of an import that did
not end, however it did not. Called by `source`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from vespiary_pipeline.brief import brief
from vespiary_pipeline.imports.assembly import Assembly, Task
from vespiary_pipeline.imports.folder import Staging
from vespiary_pipeline.imports.import_options import ImportOptions
from vespiary_pipeline.imports.rows import RowEncoder
from vespiary_pipeline.imports.staged import StagedFiles, record_bytes_max
from vespiary_spec.errors import SparkUnusable


class Written(WriterCommitMessage):
    """What a task has written.

    Attributes:
        task: Where it is, and what is in it.
    """

    def __init__(self, task: Task) -> None:
        self.task = task


@brief
class ImportWriter(DataSourceArrowWriter):
    """Writes one DataFrame.

    Args:
        options: What was asked for.
        is_numbered: The rows say their sequences.

    Raises:
        ImportRefused: Something is in the folder.
        NativeError: The folder can't be made.
    """

    def __init__(self, options: ImportOptions, *, is_numbered: bool) -> None:
        self._options = options
        self._is_numbered = is_numbered
        self._staging = Staging(Path(options.path))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task.

        Raises:
            ImportRefused: A row cannot be a message, or another import has begun.
            DiskFull: There is no room.
            NativeError: A call failed.

        Durability: none; `commit` flushes.
        """
        context = TaskContext.get()
        if context is None:
            raise SparkUnusable("an import writes outside of a task of Spark")
        partition = context.partitionId()
        folder = self._staging.begin_task(partition)
        files = StagedFiles(folder, self._options.file_bytes)
        rows = RowEncoder(self._options, partition, record_bytes_max(self._options.file_bytes))
        try:
            with self._staging.held():
                for message in rows.encode(iterator):
                    files.add(message)
                files.finish()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # else the driver's abort removes it
            raise
        finally:
            files.close()
        return Written(
            Task(
                partition, folder.name, files.files, files.bodies, rows.queues, rows.counts,
                self._is_numbered,
            )
        )  # fmt: skip

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the folder of what the tasks wrote.

        Raises:
            ImportRefused: Two rows cannot be in one broker, something is in the folder by now, or
                another import has begun.
            DiskFull: There is no room.
            NativeError: A call failed.

        Durability: on return the folder and all in it survive a power cut.
        """
        written = [one.task for one in messages if isinstance(one, Written)]
        with self._staging.held():
            Assembly(self._staging.tasks, self._staging.data, self._options).run(written)
            self._staging.publish()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002  (Spark's)
        """Remove what was staged; nothing of it was seen."""
        self._staging.drop()
