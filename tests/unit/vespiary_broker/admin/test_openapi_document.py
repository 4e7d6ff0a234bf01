"""The API's document by itself: valid, and with a description of everything."""

from __future__ import annotations

import pytest
from openapi_spec_validator import validate

from vespiary_testkit.openapi_checks import DOCUMENT


@pytest.mark.ci
def test_the_document_is_valid_openapi():
    validate(DOCUMENT)
    assert DOCUMENT["openapi"].startswith("3.1")


def test_every_record_and_field_is_described():
    assert len(DOCUMENT["components"]["schemas"]) > 20
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert schema.get("description"), name
        for field, described in schema.get("properties", {}).items():
            assert described.get("description"), f"{name}.{field}"
