"""Drives a STOMP decoder over whole streams, in one piece or in many.

Owns: the helpers that the decoder's tests share. Must never: hide an error of the decoder; the
ones that return it check that it does not depend on how the octets were cut.
"""

from vespiary_codec.wire.stomp import NEED_DATA, HeartBeat, RemoteProtocolError, StompDecoder


def decoder_for(version, *, role="server", limits=None):
    """Return a decoder that has its login behind it, or not if `version` is None."""
    decoder = StompDecoder(limits, role=role)
    if version is not None:
        decoder.set_version(version)
    return decoder


def decode(data, version="1.2", *, role="server", limits=None, pieces=None):
    """Return the frames in `data`, the number of ends of line between them, and the error."""
    decoder = decoder_for(version, role=role, limits=limits)
    frames, line_ends = [], 0
    for piece in [data] if pieces is None else pieces:
        decoder.feed(piece)
        try:
            while (event := decoder.next_event()) is not NEED_DATA:
                if isinstance(event, HeartBeat):
                    line_ends += event.count
                else:
                    frames.append(event)
        except RemoteProtocolError as error:
            return frames, line_ends, error
    return frames, line_ends, None


def octets(data):
    """Return the stream in pieces of one octet."""
    return [data[i : i + 1] for i in range(len(data))]


def frame_of(data, version="1.2", **options):
    """Return the one frame that the stream is."""
    frames, _, error = decode(data, version, **options)
    assert error is None
    (frame,) = frames
    return frame


def error_of(data, version="1.2", **options):
    """Return the error, which must be the same for every way to cut the data in two."""
    frames, line_ends, error = decode(data, version, **options)
    assert error is not None, f"accepted: {frames}"
    cuts = [octets(data)] if len(data) > 400 else [octets(data), *halves(data)]
    for pieces in cuts:
        again_frames, again_line_ends, again = decode(data, version, pieces=pieces, **options)
        assert (again_frames, again_line_ends) == (frames, line_ends)
        assert (again.violation, again.reason) == (error.violation, error.reason)
        assert again.receipt_id == error.receipt_id
    assert "\n" not in error.reason
    assert error.reason.isascii()
    return error


def halves(data):
    """Return every way to cut the stream in two."""
    return [(data[:cut], data[cut:]) for cut in range(len(data) + 1)]
