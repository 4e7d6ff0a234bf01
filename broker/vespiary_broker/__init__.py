"""The broker: engine (no I/O), store (disk), server (sockets), app (puts them together)."""
