from vespiary_broker.store.volumes import mountinfo
from vespiary_broker.store.volumes.sharing import companions


def volumes(*lines: str) -> dict[str, mountinfo.Mount]:
    return {
        name: mountinfo.parse(line + "\n")[0]
        for name, line in zip(("bindings", "journal", "paging"), lines, strict=False)
    }


def test_one_device_number_is_one_filesystem() -> None:
    found = companions(
        volumes(
            "1 0 8:1 /pv-a /b rw - ext4 /dev/sda1 rw",
            "2 0 8:2 / /j rw - ext4 /dev/sda2 rw",
            "3 0 8:1 /pv-b /p rw - ext4 /dev/sda1 rw",
        )
    )
    assert found == {"bindings": ("paging",), "journal": (), "paging": ("bindings",)}


def test_btrfs_subvolumes_share_by_source() -> None:
    found = companions(
        volumes(
            "1 0 0:41 /a /b rw - btrfs /dev/sda1 rw,subvol=/a",
            "2 0 0:42 /b /j rw - btrfs /dev/sda1 rw,subvol=/b",
            "3 0 0:43 / /p rw - btrfs /dev/sdb1 rw",
        )
    )
    assert found == {"bindings": ("journal",), "journal": ("bindings",), "paging": ()}


def test_zfs_datasets_share_their_pool() -> None:
    found = companions(
        volumes(
            "1 0 0:41 / /b rw - zfs tank/b rw",
            "2 0 0:42 / /j rw - zfs tank/j rw",
            "3 0 0:43 / /p rw - zfs tankard/p rw",
        )
    )
    assert found["bindings"] == ("journal",)
    assert found["paging"] == ()


def test_equal_or_empty_sources_of_other_filesystems_prove_nothing() -> None:
    found = companions(
        volumes(
            "1 0 0:41 / /b rw - tmpfs tmpfs rw",
            "2 0 0:42 / /j rw - tmpfs tmpfs rw",
            "3 0 0:43 / /p rw - btrfs  rw",
        )
    )
    assert set(found.values()) == {()}
