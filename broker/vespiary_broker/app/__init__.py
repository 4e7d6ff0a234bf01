"""The broker put together: `broker.BrokerApp` is the composition root."""
