from pathlib import Path

import pytest

from vespiary_broker.app.memory import (
    MemoryBindings,
    image_bytes,
    memory_limit_bytes,
    messages_bytes,
)
from vespiary_spec.settings import Configuration
from vespiary_testkit.engine_rig import do

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("memory.max", f"{256 * MIB}\n", 256 * MIB),
        ("memory.max", "max\n", None),
        ("memory/memory.limit_in_bytes", f"{512 * MIB}\n", 512 * MIB),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", None),
    ],
)
def test_limit_of_the_container(tmp_path: Path, name: str, text: str, expected: int | None) -> None:
    machine = memory_limit_bytes(tmp_path, tmp_path / "none")
    assert machine > 512 * MIB
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert memory_limit_bytes(tmp_path, tmp_path / "none") == (expected or machine)


@pytest.mark.parametrize(
    ("groups", "name", "line"),
    [
        ("pods/broker", "memory.max", "0::/pods/broker\n"),
        ("memory/pods/broker", "memory.limit_in_bytes", "4:memory:/pods/broker\n0::/\n"),
        ("memory/pods", "memory.limit_in_bytes", "7:cpu,memory:/pods/broker\n"),
    ],
)
def test_limit_of_the_process_and_of_those_above_it(
    tmp_path: Path, groups: str, name: str, line: str
) -> None:
    folder = tmp_path / "cgroups" / groups
    folder.mkdir(parents=True)
    (folder / name).write_text(f"{300 * MIB}\n")
    own = tmp_path / "own"
    own.write_text(f"1:cpuset:/elsewhere\n{line}")
    assert memory_limit_bytes(tmp_path / "cgroups", own) == 300 * MIB


def test_budget_of_messages() -> None:
    assert messages_bytes(Configuration(global_max_size=8 * MIB)) == 8 * MIB
    assert messages_bytes(Configuration()) == memory_limit_bytes() // 2


@pytest.mark.parametrize(
    ("memory", "queues", "expected"),
    [
        (1024, -1, 512),
        (320, -1, 160),
        (256, 1000, 128),
        (256, -1, 101),
        (128, -1, 32),
        (1024, 100_000, 342),
        (1024, 1_000_000, 256),
    ],
)
def test_queues_have_to_fit_beside_the_messages(memory: int, queues: int, expected: int) -> None:
    settings = Configuration(max_queues=queues)
    assert messages_bytes(settings, memory * MIB) // MIB == expected


def test_image() -> None:
    assert image_bytes(Configuration(global_max_size=100 * MIB)) == 100 * MIB
    assert image_bytes(Configuration(global_max_size=8 * MIB)) == 32 * MIB  # the core's least
    assert image_bytes(Configuration()) == memory_limit_bytes() // 2


def test_bindings() -> None:
    bindings = MemoryBindings()
    do(bindings.put("a", {"x": 1}))
    do(bindings.put("b", {}))
    do(bindings.remove("b"))
    do(bindings.remove("c"))
    assert bindings.snapshot() == {"a": {"x": 1}}
