"""STOMP 1.0, 1.1 and 1.2 on the engine: bytes to frames, frames to what they mean."""
