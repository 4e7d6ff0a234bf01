"""What versions say about their files, and when one may open what the other wrote."""

from __future__ import annotations

import pytest

from vespiary_broker.store.compatibility import own_compatibility
from vespiary_codec.journal import file_header, page
from vespiary_spec.compatibility import (
    SCHEMA,
    Compatibility,
    FileFormat,
    compare,
    compare_all,
    decode,
    encode,
)
from vespiary_spec.errors import ConfigError


def version(number: str, **formats: tuple[int, tuple[int, ...]]) -> Compatibility:
    return Compatibility(
        schema=SCHEMA,
        version=number,
        formats=tuple(
            FileFormat(name=name, writes=writes, reads=reads)
            for name, (writes, reads) in formats.items()
        ),
    )


V1 = version("1.0.0", journal=(1, (1,)), page=(2, (1, 2)))
V2 = version("2.0.0", journal=(2, (1, 2)), page=(2, (1, 2)))
V3 = version("3.0.0", journal=(3, (2, 3)), page=(2, (2,)))


def test_the_own_words_are_the_constants_of_the_code_and_survive_the_way() -> None:
    own = own_compatibility()
    said = {item.name: (item.writes, item.reads) for item in own.formats}
    assert said["journal"] == (file_header.FORMAT_VERSION, file_header.READABLE_VERSIONS)
    assert said["page"] == (page.SKETCH_FORMAT_VERSION, page.READABLE_VERSIONS)
    assert all(item.writes in item.reads for item in own.formats)
    assert decode(encode(own)) == own
    assert compare(own, own) == ("", ())


def test_what_is_written_has_to_be_read() -> None:
    assert compare(V1, V1).moves == ()
    assert [str(move) for move in compare(V1, V2).moves] == ["journal format 1 to 2"]
    assert compare(V2, V1).refusal == (
        "Version 1.0.0 reads journal files of format 1, and version 2.0.0 writes format 2."
    )
    assert "reads journal files of format 2, 3" in compare(V1, V3).refusal
    assert [str(move) for move in compare(V2, V3).moves] == ["journal format 2 to 3"]


def test_a_kind_of_file_that_one_of_them_does_not_know_is_no_hindrance() -> None:
    more = version("1.1.0", journal=(1, (1,)), page=(2, (1, 2)), index=(1, (1,)))
    assert compare(V1, more) == compare(more, V1) == ("", ())


def test_every_version_that_ran_counts() -> None:
    assert compare_all([V1, V2], V2).moves == compare(V1, V2).moves
    assert compare_all([V2, V1], V3).refusal == compare(V1, V3).refusal
    assert compare_all([], V3) == ("", ())


@pytest.mark.parametrize(
    "data",
    [b"", b"no such file", b"[]", b'{"version": "1"}', b'{"vespiary": 1}', encode(V1)[:-5]],
)
def test_what_is_no_answer_is_refused_with_what_to_do(data: bytes) -> None:
    with pytest.raises(ConfigError, match="vespiary compatibility"):
        decode(data)


def test_a_newer_message_asks_for_a_newer_operator() -> None:
    newer = encode(version("9.0.0")).replace(
        b'"vespiaryCompatibility":1', b'"vespiaryCompatibility":2'
    )
    with pytest.raises(ConfigError, match="Upgrade the operator first"):
        decode(newer)
