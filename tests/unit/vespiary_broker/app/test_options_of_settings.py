"""How settings become the journal's options."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_broker.app.broker import BrokerApp
from vespiary_spec import configuration


@pytest.mark.parametrize(
    ("timeout_ns", "delay_s"), [("0", 0.010), ("500000", 0.0005), ("1000000000", 0.010)]
)
def test_the_buffer_timeout_bounds_how_long_acknowledgements_wait(
    tmp_path: Path, timeout_ns: str, delay_s: float
):
    settings = configuration.from_plain({}, [f"journal-buffer-timeout={timeout_ns}"])
    options = BrokerApp(settings, base=tmp_path)._journal_options(tmp_path)
    assert options.acknowledgement_delay_s == delay_s
