"""The broker: engine (decides, no I/O), store (disk), server (sockets), app (puts them together)."""
