"""The broker: engine (decisions, no I/O), store (disk), server (sockets), app (puts them together)."""
