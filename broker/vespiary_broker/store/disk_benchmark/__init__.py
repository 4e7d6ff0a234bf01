"""`vespiary disk-benchmark`: what a disk can do for a journal, measured with the journal's means.

`benchmark` is the course, `workfiles` makes and removes the files, `measuring` times, `disk_facts`
reads what the system tells, `verdict` turns all of it into sentences and settings, `results` holds
the records.
"""
