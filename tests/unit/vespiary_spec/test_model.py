"""Field tables: spellings, facts, and that the whole model keeps its own rules."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest
from msgspec import inspect

from vespiary_spec.archive_status import JournalArchiveStatus
from vespiary_spec.archives import JournalArchiveSpec
from vespiary_spec.chart_values import ChartValues
from vespiary_spec.model import Change, Facts, Spelling, Unit, camel, fields_of, kebab, unwrap
from vespiary_spec.resources import BrokerNodeTuningSpec, BrokerSpec
from vespiary_spec.settings import Configuration
from vespiary_spec.status import BrokerNodeTuningStatus, BrokerStatus

ROOTS = (
    Configuration,
    BrokerSpec,
    BrokerNodeTuningSpec,
    BrokerStatus,
    BrokerNodeTuningStatus,
    JournalArchiveSpec,
    JournalArchiveStatus,
    ChartValues,
)


def structs_below(struct: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    yield struct
    for field in fields_of(struct):
        kind = field.type
        if isinstance(kind, inspect.VarTupleType):
            kind = unwrap(kind.item_type)[0]
        elif isinstance(kind, inspect.DictType):
            kind = unwrap(kind.value_type)[0]
        if isinstance(kind, inspect.StructType):
            yield from structs_below(kind.cls)


EVERY_STRUCT = sorted({s for root in ROOTS for s in structs_below(root)}, key=lambda s: s.__name__)


@pytest.mark.parametrize("struct", EVERY_STRUCT)
def test_every_field_is_described_and_spelled_one_way(struct: type[msgspec.Struct]) -> None:
    encoded = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
    for field in fields_of(struct):
        assert field.description.endswith((".", "?")), f"{field.name}: {field.description!r}"
        assert field.spelled(Spelling.CAMEL) == encoded[field.name]
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", field.spelled(Spelling.KEBAB))


def test_every_setting_says_what_a_change_takes() -> None:
    groups = {"tls", "stomp", "mqtt", "amqp", "web_socket", "admin", "security"}
    for struct in structs_below(Configuration):
        for field in fields_of(struct):
            if field.name not in groups:
                assert isinstance(field.facts.change, Change), f"{struct.__name__}.{field.name}"


@pytest.mark.parametrize("struct", EVERY_STRUCT)
def test_every_default_lies_within_its_bounds(struct: type[msgspec.Struct]) -> None:
    for field in fields_of(struct):
        facts, value = field.facts, field.default
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if value == facts.special:
            continue
        assert facts.minimum is None or value >= facts.minimum, field.name
        assert facts.maximum is None or value <= facts.maximum, field.name
        assert not facts.multiple_of or value % facts.multiple_of == 0, field.name


def test_spelling() -> None:
    assert kebab("journal_max_io") == "journal-max-io"
    assert camel("journal_max_io") == "journalMaxIo"
    assert camel("port") == "port"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (Facts(), ""),
        (Facts(minimum=1, maximum=100, unit=Unit.PERCENT), "1 to 100 %"),
        (
            Facts(minimum=65536, unit=Unit.BYTES, multiple_of=4096),
            "64Ki or more, a multiple of 4Ki",
        ),
        (Facts(minimum=0, maximum=5, special=-1, unit=Unit.FILES), "0 to 5 or -1 files"),
        (Facts(maximum=2.5), "2.5 or less"),
    ],
)
def test_bounds_in_words(facts: Facts, words: str) -> None:
    assert facts.allowed() == words
