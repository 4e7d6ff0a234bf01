import pytest

from vespiary_broker.server.listener import Listener
from vespiary_broker.server.web_pages import is_loopback
from vespiary_spec.settings import Acceptor, StompLimits
from vespiary_testkit import product_loop


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_body_cannot_be_larger_than_a_record() -> None:
    async def limits(record_bytes_max: int) -> int:
        stomp = StompLimits(max_body_size=100_000)
        return Listener(Acceptor(name="x", port=0, stomp=stomp), record_bytes_max).limits.body_bytes

    assert product_loop.run(limits(50_000)) == 50_000
    assert product_loop.run(limits(500_000)) == 100_000
