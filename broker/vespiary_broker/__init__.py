"""The broker: engine, store, server, administration, command line."""
