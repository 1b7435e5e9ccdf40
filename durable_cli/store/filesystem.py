"""Network and virtual-machine file systems, on which SQLite's WAL loses data without an error."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from durable_cli.errors import NetworkFilesystem

OVERRIDE = "DURABLE_UNSAFE_FILESYSTEM"

# Those that do not share memory maps or byte locks as a local disk does: a WAL on them corrupts silently.
UNSAFE = frozenset(
    """
    9p afs afpfs beegfs ceph cifs coda davfs drvfs fakeowner fuse.ceph-fuse fuse.davfs2 fuse.gcsfuse fuse.glusterfs
    fuse.goofys fuse.grpcfuse fuse.osxfs fuse.prl_fs fuse.rclone fuse.s3fs fuse.smbnetfs fuse.sshfs
    fuse.vmhgfs-fuse glusterfs grpcfuse lustre ncpfs nfs nfs4 osxfs prl_fs smb2 smb3 smbfs vboxsf virtiofs vmhgfs
    """.split()  # noqa: SIM905  (a literal would be 40 lines)
)

_MOUNTS = Path("/proc/self/mountinfo")


def check(path: Path, mounts: str | None = None) -> None:
    """Raise `NetworkFilesystem` when the database at `path` would lie on one of those.

    `mounts`: the text of `/proc/self/mountinfo`, read when absent. Where there is none (not Linux) nothing is
    checked, nor when DURABLE_UNSAFE_FILESYSTEM=1 says that the user knows better.
    """
    if os.environ.get(OVERRIDE) == "1":
        return
    kind, mounted = kind_of(path, mounts)
    if kind in UNSAFE:
        raise NetworkFilesystem(
            f"{path} lies on a {kind} file system ({mounted}), where SQLite loses data without an error",
            facts=("a local disk is needed; in a container: a named volume, not a folder of the host",),
            hint=f"--db on a local disk, or {OVERRIDE}=1 if you know that it is safe",
        )


def kind_of(path: Path, mounts: str | None = None) -> tuple[str, str]:
    """(type, mount point) of the file system that the database at `path` is on; two empty texts where nobody says."""
    if mounts is None:
        if sys.platform != "linux":
            return "", ""
        try:
            mounts = _MOUNTS.read_text("utf-8", "surrogateescape")
        except OSError:
            return "", ""
    return mount_of(str(path.parent), mounts)


def mount_of(folder: str, mounts: str) -> tuple[str, str]:
    """(type, mount point) of the file system `folder` is on: the longest mount point above it, the last of equals."""
    best = ("", "")
    for line in mounts.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = _plain(fields[4])
        above = point.rstrip("/") + "/"
        if (folder.rstrip("/") + "/").startswith(above) and len(point) >= len(best[1]):
            best = (right.split(" ", 1)[0], point)
    return best


def _plain(text: str) -> str:
    """A mount point without the kernel's octal escapes for blank, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)
