"""WebSocket (RFC 6455): the way of every protocol through HTTP, for browsers and firewalls."""
