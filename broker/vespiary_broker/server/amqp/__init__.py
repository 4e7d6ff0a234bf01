"""AMQP 1.0 sessions on the engine; `handler` is where a connection begins."""
