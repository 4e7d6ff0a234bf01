from vespiary_broker.engine.login_queue import LoginQueue, Rank


def filled(*jobs: tuple[str, Rank, str], limit: int = 100) -> LoginQueue[str]:
    queue: LoginQueue[str] = LoginQueue(limit)
    for job in jobs:
        assert queue.put(*job) is None
    return queue


def drained(queue: LoginQueue[str]) -> str:
    found = ""
    while (job := queue.take()) is not None:
        found += job
    return found


def test_ranks_come_first_and_networks_of_a_rank_take_turns() -> None:
    queue = filled(
        ("a", Rank.SUSPECT, "1"),
        ("b", Rank.STRANGER, "1"),
        ("c", Rank.STRANGER, "1"),
        ("d", Rank.STRANGER, "1"),
        ("e", Rank.STRANGER, "2"),
        ("f", Rank.IDLE, ""),
        ("g", Rank.FRIEND, "3"),
        ("h", Rank.STRANGER, "3"),
    )
    assert len(queue) == 8
    assert drained(queue) == "gbehcdaf"
    assert len(queue) == 0
    assert queue.take() is None


def test_a_full_queue_drops_the_newest_of_who_has_the_most() -> None:
    queue = filled(
        ("a", Rank.STRANGER, "1"),
        ("b", Rank.SUSPECT, "1"),
        ("c", Rank.SUSPECT, "2"),
        ("d", Rank.SUSPECT, "2"),
        limit=4,
    )
    assert queue.put("e", Rank.STRANGER, "9") == "d"
    assert queue.put("f", Rank.SUSPECT, "2") == "f"
    assert queue.put("g", Rank.FRIEND, "9") in ("b", "c")
    assert len(queue) == 4
    assert drained(queue)[:3] == "gae"
