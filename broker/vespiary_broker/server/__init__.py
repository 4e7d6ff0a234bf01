"""The server: listeners, connections and protocol sessions on the event loop."""
