"""The tuner: it raises, reads back, and never lowers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_operator.node_tuning import Order, Tuner, order_of, target_of

NUMBERS = st.integers(0, 2**31 - 1)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_the_target_is_never_lower_and_never_raised_above_the_maximum(
    floor: int, margin: int, maximum: int, demand: int, reserved: int, current: int, in_use: int
) -> None:
    order = Order(floor=floor, margin=margin, maximum=maximum, demand=demand, reserved=reserved)
    target = target_of(order, current=current, in_use=in_use)
    assert target >= current
    assert target <= max(current, maximum)
    if current < min(floor, maximum):
        assert target >= min(floor, maximum)


def test_what_brokers_hold_is_not_counted_twice() -> None:
    order = Order(floor=1, margin=100, maximum=10**6, demand=1000, reserved=600)
    assert target_of(order, current=1, in_use=700) == 100 + 1000 + 100


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"floor": 1, "margin": 1, "max": 1}'])
def test_orders_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        order_of(text, "n")


class Node:
    """Files as a node has them."""

    def __init__(self, folder: Path, *, value: int, in_use: int = 0) -> None:
        self.orders = folder / "nodes.json"
        self.knob = folder / "aio-max-nr"
        self.in_use = folder / "aio-nr"
        self.knob.write_text(f"{value}\n")
        self.in_use.write_text(f"{in_use}\n")
        self.order(demand=500)
        self.tuner = Tuner(node="n", orders=self.orders, knob=self.knob, in_use=self.in_use)

    def order(self, *, demand: int, maximum: int = 10**6) -> None:
        orders = {
            "floor": 65536,
            "margin": 65536,
            "max": maximum,
            "nodes": {"n": {"demand": demand}},
        }
        self.orders.write_text(json.dumps(orders))


def test_it_raises_once_and_remembers_the_old_value(tmp_path: Path) -> None:
    node = Node(tmp_path, value=65536)
    report = node.tuner.look()
    assert node.knob.read_text() == "66036\n"
    assert (report.raised_from, report.aio_max_nr, report.is_satisfied) == (65536, 66036, True)
    again = node.tuner.look()
    assert again.raised_from == 65536
    assert again.message == "fs.aio-max-nr was raised from 65536 to 66036."
    node.order(demand=0)
    node.tuner.look()
    assert node.knob.read_text() == "66036\n", "it is never lowered"


def test_drift_is_repaired(tmp_path: Path) -> None:
    node = Node(tmp_path, value=65536)
    node.tuner.look()
    node.knob.write_text("65536\n")  # a reboot
    node.tuner.look()
    assert node.knob.read_text() == "66036\n"


def test_the_maximum_is_kept_and_said(tmp_path: Path) -> None:
    node = Node(tmp_path, value=65536)
    node.order(demand=10**6, maximum=100_000)
    report = node.tuner.look()
    assert node.knob.read_text() == "100000\n"
    assert not report.is_satisfied
    assert "spec.max is 100000" in report.message


def test_a_knob_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    node = Node(tmp_path, value=65536)
    node.knob.unlink()
    node.knob.symlink_to("/proc/sys/kernel/version")  # can be read, is no number
    report = node.tuner.look()
    assert not report.is_satisfied
    assert "could not be looked at" in report.message
    node.orders.unlink()
    assert "nodes.json" in node.tuner.look().message


def test_it_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, vespiary_operator.node_tuning; "
        "print(sorted(m for m in ('kopf', 'kubernetes', 'msgspec', 'aiohttp') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_another_tunings_node_is_left_alone(tmp_path: Path) -> None:
    node = Node(tmp_path, value=100)
    orders = {"floor": 65536, "margin": 1, "max": 10**6, "nodes": {"n": {"excluded": True}}}
    node.orders.write_text(json.dumps(orders))
    report = node.tuner.look()
    assert node.knob.read_text() == "100\n"
    assert report.is_satisfied


def test_a_report_says_by_which_orders_it_went(tmp_path: Path) -> None:
    node = Node(tmp_path, value=65536)
    first = node.tuner.look().orders
    node.order(demand=501)
    second = node.tuner.look().orders
    assert first != second
    assert second == order_of(node.orders.read_text(), "n").digest


def test_the_value_before_the_first_raise_is_told(tmp_path: Path) -> None:
    node = Node(tmp_path, value=65536)
    node.tuner.look()
    node.order(demand=1500)
    report = node.tuner.look()
    assert (report.raised_from, report.aio_max_nr) == (65536, 65536 + 1500)
