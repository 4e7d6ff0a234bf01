"""MQTT 3.1, 3.1.1 and 5 on the engine: bytes to packets, packets to what they mean."""
