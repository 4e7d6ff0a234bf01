"""Journals, pages and exports of Vespiary as Spark DataFrames.

`register(spark)` makes the format `vespiary` known to a session. The package adapts
`vespiary_codec` to Spark and never imports the broker: Spark distributes, sorts, joins and retries.
"""
