"""Live queues as streams: a query reads ranges of sequences, and acknowledges what it has done."""
