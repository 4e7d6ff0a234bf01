"""Every answer that the API documents for fences, asked for and checked.

Owns `ask_fences`. Used by the test of all operations, which wants all answers in one module.
"""

from __future__ import annotations

from vespiary_testkit.admin_rig import AdminRig
from vespiary_testkit.memory_fences import fence_state
from vespiary_testkit.openapi_checks import ROOT, ask, check, operation, path_of


def ask_fences(rig: AdminRig) -> None:
    """Decide, look and delete, rightly and wrongly."""
    fences = rig.broker.fences
    decision = {"batch": 3, "tasks": {"0.1.aa": 2, "1.2.bb": 0}}
    made = ask(rig, "decideBatch", "spark", body=decision)
    assert (made.json["batch"], made.json["accepted"], made.json["undecided"]) == (3, True, 2)
    again = ask(rig, "decideBatch", "spark", body={"batch": 3, "tasks": {}, "isLast": True})
    assert (again.json["batch"], again.json["accepted"]) == (3, False)
    assert fences.asked == [(3, (("0.1.aa", 2), ("1.2.bb", 0)), False), (3, (), True)]
    assert ask(rig, "decideBatch", "spark", body={"batch": 4, "tasks": {"gone": 1}}).status == 409
    for wrong in ({"batch": -1, "tasks": {}}, {"batch": 1, "tasks": {"a": -1}}, {"batch": 1}):
        assert ask(rig, "decideBatch", "spark", body=wrong).status == 400
    assert [item["name"] for item in ask(rig, "listFences").json["items"]] == ["spark"]
    assert ask(rig, "showFence", "spark").json["undecidedS"] == 4.5
    path = path_of(operation("decideBatch"), "spark")
    large = rig.call("POST", path, login=ROOT, data=b" " * 70_000)
    assert check(operation("decideBatch"), large).status == 413
    text = rig.call("POST", path, login=ROOT, data=b"{}", headers={"Content-Type": "text/plain"})
    assert check(operation("decideBatch"), text).status == 415
    for name in ("showFence", "deleteFence"):
        assert ask(rig, name, "nowhere").status == 404
    fences.states["waits"] = fence_state("waits", pending=1)
    assert ask(rig, "deleteFence", "waits").status == 409
    assert ask(rig, "deleteFence", "spark").status == 204
    assert fences.names() == ["waits"]
