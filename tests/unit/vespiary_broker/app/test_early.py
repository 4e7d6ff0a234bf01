"""The volumes are verified while the rest of a broker is imported."""

from pathlib import Path

import pytest

from vespiary_broker.app.broker import BrokerApp
from vespiary_broker.app.early import begin_verification
from vespiary_spec import configuration as configurations
from vespiary_spec.errors import VespiaryError
from vespiary_spec.resources import FilesystemPolicy
from vespiary_spec.settings import Configuration
from vespiary_testkit import product_loop

NOTHING = FilesystemPolicy(allow=(), warn=())


def settings() -> Configuration:
    return configurations.from_plain({}, ["admin.port=0", "acceptors.all.port=0"])


def test_it_asks_about_every_volume_of_a_start(tmp_path: Path):
    base = tmp_path / "data"
    report = begin_verification(settings(), base, None, is_ephemeral=True).result(30)
    report.raise_if_refused()
    assert [volume.result.name for volume in report.volumes] == [
        "bindings",
        "journal",
        "paging",
        "large-messages",
    ]
    assert all(volume.flush_count == 0 for volume in report.volumes)


def test_a_refusal_that_was_found_early_stops_the_start_before_the_store(tmp_path: Path):
    base = tmp_path / "data"
    verified = begin_verification(settings(), base, NOTHING, is_ephemeral=False)
    app = BrokerApp(settings(), base=base, is_ephemeral=True, verified=verified)

    async def start() -> None:
        async with app.running():
            pytest.fail("it started")

    with pytest.raises(VespiaryError, match="refused"):
        product_loop.run(start())
    assert not base.exists()
