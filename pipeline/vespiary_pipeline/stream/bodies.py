"""Bodies of large messages of a stream: the broker gives them piece by piece.

Owns reading and checking one. Called by `sources.batches` for a batch of `reader`.
"""

from __future__ import annotations

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.columns import Columns
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_pipeline.stream.client import Claim, StreamClient
from vespiary_spec.errors import BrokerRefused


class StreamBodies:
    """Reads bodies of one answer. Owner: the task.

    Args:
        client: Calls the broker.
        claim: The stream.
        columns: The answer's records.
        piece_bytes: Bytes of one call.
    """

    def __init__(
        self, client: StreamClient, claim: Claim, columns: Columns, piece_bytes: int
    ) -> None:
        self._client = client
        self._claim = claim
        self._sequences = memoryview(columns.place_sequence).cast("B").cast("q")
        self._piece_bytes = piece_bytes

    def __call__(self, reference: bytes, row: int) -> bytes | str:
        """Return a body, or a sentence that says why it can't be given.

        Args:
            reference: The 24 bytes that the record has in its place.
            row: The row of the message; it has one place.
        """
        found = decode_large_reference(reference)
        sequence = self._sequences[row]
        try:
            body = self._client.body(self._claim, sequence, found.size_bytes, self._piece_bytes)
        except BrokerRefused as refused:
            return str(refused)
        if len(body) != found.size_bytes or crc32c(body) != found.crc:
            return f"the body of message {sequence} is not what its record says"
        return body
