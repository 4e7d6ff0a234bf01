"""Measurements of paging: a backlog larger than the memory, and a lazy queue beside a fast one."""
