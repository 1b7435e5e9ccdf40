"""Network and virtual-machine file systems are refused before a byte is written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from durable_cli.errors import NetworkFilesystem
from durable_cli.store import filesystem
from durable_cli.store.database import Database

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /mnt/share rw - nfs4 server:/x rw
31 30 8:2 / /mnt/share/local rw shared:9 master:2 - ext4 /dev/sdb1 rw
32 22 0:31 / /mnt/with\040blank rw - cifs //server/x rw
33 22 0:32 / /work rw - ext4 /dev/sdc1 rw
34 22 0:33 / /work rw - virtiofs host rw
35 22 0:34 / /mnt/sharepoint rw - tmpfs tmpfs rw
36 22 0:35 / /home/me/cloud rw - fuse.rclone remote: rw
a line that is none
"""


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/", ("ext4", "/")),
        ("/home/me", ("ext4", "/")),
        ("/mnt/share", ("nfs4", "/mnt/share")),
        ("/mnt/share/deep/er", ("nfs4", "/mnt/share")),
        ("/mnt/share/local/x", ("ext4", "/mnt/share/local")),
        ("/mnt/sharepoint", ("tmpfs", "/mnt/sharepoint")),
        ("/mnt/with blank/x", ("cifs", "/mnt/with blank")),
        ("/work/src", ("virtiofs", "/work")),
        ("/home/me/cloud/x", ("fuse.rclone", "/home/me/cloud")),
    ],
)
def test_the_longest_mount_point_counts_and_of_equals_the_last(folder: str, expected: tuple[str, str]) -> None:
    """By whole components of the path, escapes resolved, a mount over a mount covering it."""
    assert filesystem.mount_of(folder, MOUNTS) == expected


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "fuse.sshfs", "fakeowner"])
def test_unsafe_kinds_are_refused_with_the_remedy(kind: str) -> None:
    """The message names path, kind and mount point; the hint a way out."""
    mounts = f"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /data rw - {kind} b rw\n"
    with pytest.raises(NetworkFilesystem, match=rf"/data/x/durable.db lies on a {kind} .*\(/data\)") as caught:
        filesystem.check(Path("/data/x/durable.db"), mounts)
    assert caught.value.hint is not None
    assert "DURABLE_UNSAFE_FILESYSTEM=1" in caught.value.hint
    filesystem.check(Path("/other/durable.db"), mounts)


@pytest.mark.parametrize(("value", "refused"), [("1", False), ("0", True), ("", True)])
def test_who_knows_better_says_so(monkeypatch: pytest.MonkeyPatch, value: str, refused: bool) -> None:
    """DURABLE_UNSAFE_FILESYSTEM=1, and no other value, switches the check off."""
    monkeypatch.setenv(filesystem.OVERRIDE, value)
    mounts = "1 0 0:1 / / rw - nfs a rw\n"
    if refused:
        with pytest.raises(NetworkFilesystem):
            filesystem.check(Path("/x.db"), mounts)
    else:
        filesystem.check(Path("/x.db"), mounts)


@pytest.mark.skipif(sys.platform != "linux", reason="there is a list of mounts on Linux only")
def test_a_refused_place_gets_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check comes before SQLite touches anything, for an existing file too."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 0 0:1 / / rw - virtiofs host rw\n")
    monkeypatch.setattr(filesystem, "_MOUNTS", mounts)
    path = tmp_path / "db" / "durable.db"
    with pytest.raises(NetworkFilesystem):
        Database(path).read(lambda tx: None)
    assert not path.exists()
