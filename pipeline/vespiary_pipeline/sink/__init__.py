"""Sinks: rows of a DataFrame to the queues of a running broker."""
