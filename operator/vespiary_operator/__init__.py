"""The operator: Broker resources become StatefulSets, and `fs.aio-max-nr` becomes enough."""
