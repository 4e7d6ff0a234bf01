"""Every answer that the API documents for streams, asked for and checked.

Owns `ask_streams`. Used by the test of all operations, which wants all answers in one module.
"""

from __future__ import annotations

from vespiary_codec.journal.ranges import RangeGap, decode_range
from vespiary_testkit.admin_rig import AdminRig
from vespiary_testkit.memory_streams import stream_state
from vespiary_testkit.openapi_checks import ROOT, ask, check, operation, path_of

_READS = {
    "headOfStream": "?epoch={}",
    "rangeOfStream": "?epoch={}&after=2&to=9223372036854775807&maxBytes=70000",
    "bodyOfStream": "?epoch={}&sequence=3&offset=5&maxBytes=6",
}


def ask_streams(rig: AdminRig) -> None:
    """Claim, read, acknowledge and delete streams, rightly and wrongly."""
    streams = rig.broker.streams
    claim = {"name": "spark", "queue": "orders", "owner": "query"}
    made = ask(rig, "claimStream", body=claim | {"leaseS": 5})
    assert (made.status, made.json["epoch"], made.json["leaseS"]) == (201, 1, 5)
    assert made.headers["Location"] == "/api/v1/streams/spark"
    assert ask(rig, "claimStream", body=claim).json["epoch"] == 2
    refused = ask(rig, "claimStream", body=claim | {"owner": "another"})
    assert (refused.status, refused.json["type"]) == (409, "urn:vespiary:error:VSP-P108")
    assert ask(rig, "claimStream", body=claim | {"name": "x", "queue": "nowhere"}).status == 404
    assert ask(rig, "claimStream", body=claim | {"leaseS": 0.5}).status == 400
    assert [item["name"] for item in ask(rig, "listStreams").json["items"]] == ["spark"]
    assert ask(rig, "showStream", "spark").json["cappedBy"] == "7:aa:01"
    _read(rig)
    done = ask(rig, "acknowledgeStream", "spark", body={"epoch": 2, "sequence": 5})
    assert done.json["acknowledged"] == 5
    old = ask(rig, "acknowledgeStream", "spark", body={"epoch": 1, "sequence": 5})
    assert (old.status, old.json["type"]) == (409, "urn:vespiary:error:VSP-P109")
    for name in ("claimStream", "acknowledgeStream"):
        path = path_of(operation(name), "spark")
        large = rig.call("POST", path, login=ROOT, data=b" " * 70_000)
        assert check(operation(name), large).status == 413
        text = rig.call(
            "POST", path, login=ROOT, data=b"{}", headers={"Content-Type": "text/plain"}
        )
        assert check(operation(name), text).status == 415
    for name in ("showStream", "deleteStream", *_READS):
        query = _READS.get(name, "").format(2)
        assert ask(rig, name, "nowhere", query).status == 404
    missing = ask(rig, "acknowledgeStream", "nowhere", body={"epoch": 1, "sequence": 1})
    assert missing.status == 404
    streams.states["kept"] = stream_state("kept", queue="prices")
    assert ask(rig, "deleteStream", "kept").status == 409
    assert ask(rig, "deleteStream", "spark").status == 204
    assert streams.names() == ["kept"]


def _read(rig: AdminRig) -> None:
    for name, query in _READS.items():
        assert ask(rig, name, "spark", query.format(1)).status == 409, "an older run"
        assert "epoch is missing" in ask(rig, name, "spark").json["detail"]
    assert ask(rig, "headOfStream", "spark", "?epoch=2").json["head"] == 9
    answer = ask(rig, "rangeOfStream", "spark", "?epoch=2&after=2&to=9&maxBytes=70000")
    found = decode_range(answer.body, int(answer.headers["Vespiary-Blocks-Length"]), 1)
    assert (found.through, found.messages) == (9, 1)
    assert found.gaps == (RangeGap(4, 9, "expired"),)
    assert ask(rig, "bodyOfStream", "spark", _READS["bodyOfStream"].format(2)).body == b"piece"
    assert rig.broker.streams.asked == [(2, 9, 70_000), (3, 5, 6)]
