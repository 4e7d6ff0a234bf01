"""The verification on real NFS 3 and NFS 4.2, in the virtual machine of the cluster script.

The guest has Python 3.11, no network and no packages, so everything that the verification needs is
copied beside it: that also proves how little that is.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT.parent / "shared" / "cluster" / "cluster"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not CLUSTER.exists(), reason=f"no NFS guest: {CLUSTER} is not there"),
    pytest.mark.verify,
]

PROGRAM = """
import json, os, sys
sys.path.insert(0, "/tmp/program")
from vespiary_broker.store.volumes.identity import Owner
from vespiary_broker.store.volumes.request import VerificationRequest, VolumeRequest
from vespiary_broker.store.volumes.verification import verify
from vespiary_spec.resources import FilesystemPolicy
from vespiary_spec.verification import encode

def look(folder):
    return sorted(
        (entry.path, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(folder)
    ) + [os.stat(folder).st_mtime_ns]

here = os.getcwd() + "/store"
before = look(here)
request = VerificationRequest(
    volumes=(
        VolumeRequest(name="journal", path=here, is_created=True),
        VolumeRequest(name="bindings", path="/srv/vespiary/bindings", is_created=True),
    ),
    aio_demand=500,
    owner=Owner(name="shop/orders"),
)
report = verify(request)
is_untouched = look(here) == before
# Who insists gets it: the trial then runs on NFS itself, and cleans up after itself too.
insisted = verify(VerificationRequest(
    volumes=(VolumeRequest(name="journal", path=here),),
    policy=FilesystemPolicy(allow=("nfs", "nfs4")),
    aio_demand=500,
    flush_samples=5,
))
print("@report " + json.dumps({
    "nfs": os.environ["NFS_VERSION"],
    "exit": int(report.exit_code),
    "refusal": report.answer.refusal,
    "engine": report.answer.engine,
    "filesystems": [volume.result.filesystem for volume in report.volumes],
    "sources": [volume.result.source for volume in report.volumes],
    "message_bytes": len(encode(report.answer)),
    "is_untouched": is_untouched,
    "insisted_exit": int(insisted.exit_code),
    "insisted_direct": insisted.volumes[0].result.direct_io,
    "insisted_flushes": insisted.volumes[0].flush_count,
    "insisted_sentences": insisted.sentences,
    "left": sorted(os.listdir(here)),
    "is_bindings_made": os.path.exists("/srv/vespiary/bindings"),
}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the program, its packages and a message store."""
    program = tmp_path / "program"
    for package in ("broker/vespiary_broker", "crds/vespiary_spec"):
        shutil.copytree(
            ROOT / package,
            program / Path(package).name,
            ignore=shutil.ignore_patterns("__pycache__", "*.so"),
        )
    shutil.copytree(
        Path(msgspec.__file__).parent,
        program / "msgspec",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (program / "verify.py").write_text(PROGRAM)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "activemq-data-1.hq").write_bytes(b"messages")
    return tmp_path


def test_real_nfs_is_refused_in_a_sentence_and_not_touched(folder: Path) -> None:
    # The program runs from memory: on NFS its own __pycache__ would be the only thing that changes.
    command = "mkdir -p /srv/vespiary && cp -r program /tmp/ && python3 -B /tmp/program/verify.py"
    done = subprocess.run(
        [str(CLUSTER), "nfs-guest", str(folder), command],
        capture_output=True,
        text=True,
        timeout=900,
    )
    if "could not install" in done.stderr or "could not be made" in done.stderr:
        pytest.skip(f"the NFS guest can't be made here: {done.stderr.strip()}")
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    reports = {
        report["nfs"]: report
        for line in done.stdout.splitlines()
        if line.startswith("@report ")
        for report in [json.loads(line.removeprefix("@report "))]
    }
    assert set(reports) == {"3", "4.2"}, output
    for version, kind in (("3", "nfs"), ("4.2", "nfs4")):
        report = reports[version]
        assert report["exit"] == 1
        assert report["filesystems"] == [kind, "ext4"]
        assert report["sources"][0].startswith("127.0.0.1:/")
        assert f"The volume journal is on {kind}, which is refused" in report["refusal"]
        assert "NFS" in report["refusal"]
        assert "Give it a volume with xfs or ext4" in report["refusal"]
        assert report["engine"] == ""
        assert report["message_bytes"] <= 4096
        assert report["is_untouched"]
        assert not report["is_bindings_made"]
        assert report["insisted_exit"] == 0, report
        assert report["insisted_direct"] is True
        assert report["insisted_flushes"] >= 1
        assert report["left"] == ["activemq-data-1.hq"]
