"""The HTTP listener: probes, metrics, the JSON API and one page; `server.AdminServer` starts it."""
