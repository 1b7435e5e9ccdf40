"""A nightly backup of one folder: plan, archive, verify, rotate, report. Each is a step.

    durable run examples/backup.py --key backup:docs -P source=~/Documents -P target=/mnt/disk/backups

The key names what is backed up: a second copy of the command finds the first one and does nothing, and a
backup that was cut off (crash, reboot, kill -9) goes on with the first step that has no record.

What the archive holds is never guessed. Every file is hashed as it is read, the hashes go into a manifest
beside the archive, and `verify` reads the archive back and compares it before an older one may go. Files
that cannot be read, vanish or change meanwhile do not stop the backup: manifest and report name them.

Restore with `tar -xf NAME.tar.gz`. Owner, mode, times, hard links and symbolic links are kept.
"""

from __future__ import annotations

import contextlib
import fnmatch
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any, Literal, cast

from durable_cli import Abort, Context, Retry, workflow

Beat = Callable[[], object]  # tells durable that the step is at work; raises when the run was cancelled
EXAMPLES = 10  # how many names of skipped or changed files a result carries; the manifest has them all
NAME_ENDS = r"\d{8}T\d{6}Z-[0-9a-f]{8}\.tar(\.gz)?"  # after the prefix of a source; see make_plan
REPLACED = "was replaced while the folder was read"
STALE_AFTER = 24 * 3600  # seconds; an archive that is being written is written to more often than that


@dataclass(frozen=True)
class Backup:
    """The input. Paths may begin with `~`; relative ones count from the folder that durable runs in."""

    source: str
    target: str
    keep: int = 7
    compress: Literal["gz", "none"] = "gz"
    exclude: tuple[str, ...] = ()  # patterns as `*.tmp` or `cache/*`, for a name or a path inside the source

    def __post_init__(self) -> None:
        if not self.source or not self.target:
            raise ValueError("source and target must name a folder")
        if self.keep < 1:
            raise ValueError("keep must be 1 or more: the archive just written is never removed")


@dataclass(frozen=True)
class Plan:
    """What the run will do: absolute paths, the archive's name, and what the walk met. Sizes in bytes."""

    source: str
    target: str
    archive: str
    prefix: str  # of the names of all archives of this source; nothing else in the target is ours
    root: str  # the folder that all members of the archive are in
    compress: Literal["gz", "none"]
    exclude: tuple[str, ...]
    files: int
    bytes: int
    skipped: int
    examples: list[str]


@dataclass(frozen=True)
class Archived:
    """What was written. `manifest` is JSON lines: a manifest of thousands of files is no result of a step."""

    archive: str
    sha256: str
    size: int
    manifest: str
    manifest_sha256: str
    files: int
    bytes: int
    skipped: int
    changed: int
    examples: list[str]


@dataclass(frozen=True)
class Report:
    """The result of the run. `kept`, `kept_bytes` and `free_bytes` tell how the target is doing."""

    archive: str
    sha256: str
    files: int
    bytes: int
    archive_bytes: int
    skipped: int
    changed: int
    examples: list[str]
    rotated: list[str]
    kept: int
    kept_bytes: int
    free_bytes: int


class Damaged(Abort):
    """The archive is not what was written. Not tried again: reading it once more does not mend it."""


@workflow(reuse="after_close", on_duplicate="use_existing")
def backup(ctx: Context, job: Backup) -> Report:
    # The archive's name comes from a recorded moment and a recorded random number. It is the same after every
    # crash, and no other run has it: what lies there under that name is from an earlier attempt of this run.
    plan = ctx.run("plan", make_plan, job, ctx.now(), str(ctx.uuid()))
    patient = Retry(max_attempts=3, base="5s", retry_on=OSError)  # a disk over the network comes back
    made = ctx.run("archive", write_archive, plan, ctx.heartbeat, retry=patient)
    ctx.run("verify", verify_archive, plan, made, ctx.heartbeat, retry=patient)
    rotated = ctx.run("rotate", rotate, plan, job.keep, retry=patient)
    return ctx.run("report", report, plan, made, rotated, retry=patient)


# -- plan ----------------------------------------------------------------------------------------------------


def make_plan(job: Backup, moment: datetime, token: str) -> Plan:
    """Find the folders, choose the name and see what is there.

    Only the counts are kept. The archive step walks again, for a run that goes on after a night switched off
    shall save the files of today.
    """
    source = os.path.realpath(os.path.expanduser(job.source))
    target = os.path.realpath(os.path.expanduser(job.target))
    if not os.path.isdir(source):
        raise Abort(f"the source {source} is not a folder")
    if source == target:
        raise Abort(f"the target is the source itself: {source}")
    os.makedirs(target, mode=0o700, exist_ok=True)
    root = os.path.basename(source) or "root"
    label = re.sub(r"[^A-Za-z0-9._]+", "_", root)[:60]
    prefix = f"{label}-{hashlib.sha256(os.fsencode(source)).hexdigest()[:8]}-"
    suffix = {"gz": ".tar.gz", "none": ".tar"}[job.compress]
    files = size = skipped = 0
    examples: list[str] = []
    for entry in walk(source, target, job.exclude):
        if entry.kind == "skipped":
            skipped += 1
            examples += [f"{readable(entry.name)}: {entry.why}"][: EXAMPLES - len(examples)]
        elif entry.kind == "file":
            files, size = files + 1, size + entry.size
    if not files:
        # More likely a disk that is not mounted than a wish; an empty archive would rotate a good one away.
        raise Abort(f"there is no file to save in {source}", facts=tuple(examples[:3]))
    name = f"{prefix}{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}-{token.replace('-', '')[-8:]}{suffix}"
    return Plan(
        source=source,
        target=target,
        archive=os.path.join(target, name),
        prefix=prefix,
        root=root,
        compress=job.compress,
        exclude=job.exclude,
        files=files,
        bytes=size,
        skipped=skipped,
        examples=examples,
    )


@dataclass(frozen=True)
class Entry:
    """Something that the walk met; `name` is its path inside the source, `why` the reason to skip it."""

    name: str
    kind: Literal["file", "link", "folder", "skipped"]
    size: int = 0
    why: str = ""


def walk(source: str, target: str, exclude: Sequence[str]) -> Iterator[Entry]:
    """All of a tree, a folder before what is in it, in the order of names. Symbolic links are not followed.

    What cannot be listed is skipped with its reason; only the source itself raises OSError.
    """
    of_target = os.stat(target)
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(os.path.join(source, folder)) as listing:
                children = sorted(listing, key=lambda child: child.name)
        except OSError as error:
            if not folder:
                raise
            yield Entry(folder, "skipped", why=reason(error))
            continue
        yield Entry(folder, "folder")
        inner: list[str] = []
        for child in children:
            name = os.path.join(folder, child.name)
            if any(fnmatch.fnmatchcase(child.name, p) or fnmatch.fnmatchcase(name, p) for p in exclude):
                continue
            entry = look(child, name, of_target)
            if entry.kind == "folder":
                inner.append(name)
            else:
                yield entry
        folders.extend(reversed(inner))


def look(child: os.DirEntry[str], name: str, of_target: os.stat_result) -> Entry:
    """What one name in a folder is."""
    try:
        found = child.stat(follow_symlinks=False)
    except OSError as error:
        return Entry(name, "skipped", why=reason(error))
    if os.path.samestat(found, of_target):
        return Entry(name, "skipped", why="the folder that the backups are in")
    if stat.S_ISDIR(found.st_mode):
        return Entry(name, "folder")
    if stat.S_ISLNK(found.st_mode):
        return Entry(name, "link")
    if stat.S_ISREG(found.st_mode):
        return Entry(name, "file", size=found.st_size)
    kinds = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a named pipe"}
    return Entry(name, "skipped", why=kinds.get(stat.S_IFMT(found.st_mode), "a device"))


# -- archive -------------------------------------------------------------------------------------------------


def write_archive(plan: Plan, beat: Beat) -> Archived:
    """Write the archive and its manifest, from nothing, under temporary names; then give them their names.

    What an earlier attempt left is discarded, never continued. An archive that has its name is complete, is
    on the disk, and has its manifest. Raises OSError when the target fails, for example because it is full.
    """
    manifest = manifest_of(plan.archive)
    partials = [plan.archive + ".partial", manifest + ".partial"]
    try:
        with Sink(partials[0]) as out, Sink(partials[1]) as listing:
            saved = fill(plan, out, listing, pulse(beat))
        if not saved["files"]:
            raise Abort(f"no file in {plan.source} could be read", facts=tuple(saved["examples"][:3]))
        os.replace(partials[1], manifest)
        os.replace(partials[0], plan.archive)
        sync_folder(plan.target)
    except BaseException:  # a full disk must not stay full, and a cancelled run arrives as a BaseException
        for partial in partials:
            discard(partial)
        raise
    return Archived(
        archive=plan.archive,
        sha256=out.digest.hexdigest(),
        size=out.size,
        manifest=manifest,
        manifest_sha256=listing.digest.hexdigest(),
        **saved,
    )


def fill(plan: Plan, out: Sink, listing: Sink, beat: Beat) -> dict[str, Any]:
    """Put the tree into the archive and a line for each of its members, and for each skipped name, into the
    manifest. Returns the counts and examples of `Archived`.
    """
    counts = {"files": 0, "bytes": 0, "skipped": 0, "changed": 0}
    examples: list[str] = []
    with contextlib.ExitStack() as stack:
        body: Any = out
        if plan.compress == "gz":
            body = stack.enter_context(gzip.GzipFile("", "wb", 6, fileobj=cast(Any, out), mtime=0))
        tar = stack.enter_context(tarfile.open(fileobj=body, mode="w|", format=tarfile.PAX_FORMAT))
        for entry in walk(plan.source, plan.target, plan.exclude):
            beat()
            line = add(tar, plan, entry, beat)
            listing.write(json.dumps(line).encode() + b"\n")
            counts["files"] += "sha256" in line or line["kind"] == "hardlink"
            counts["bytes"] += line.get("bytes", 0)
            counts["skipped"] += line["kind"] == "skipped"
            counts["changed"] += "changed" in line
            if (why := line.get("why") or line.get("changed")) and len(examples) < EXAMPLES:
                examples.append(f"{readable(entry.name)}: {why}")
            forget_members(tar)
    return {**counts, "examples": examples}


def add(tar: tarfile.TarFile, plan: Plan, entry: Entry, beat: Beat) -> dict[str, Any]:
    """Add one member, or do not; returns its line of the manifest."""
    if entry.kind == "skipped":
        return {"kind": "skipped", "name": entry.name, "why": entry.why}
    path = os.path.join(plan.source, entry.name)
    member = os.path.join(plan.root, entry.name).rstrip("/")
    try:
        if entry.kind == "file":
            with open(path, "rb", opener=open_file) as file:
                return add_file(tar, file, member, beat)
        info = tar.gettarinfo(path, member)
    except OSError as error:
        return {"kind": "skipped", "name": entry.name, "why": reason(error)}
    if info is None or not (info.issym() if entry.kind == "link" else info.isdir()):
        return {"kind": "skipped", "name": entry.name, "why": REPLACED}
    info.mtime = int(info.mtime)  # a fraction of a second costs another kilobyte of header
    tar.addfile(info)
    return {"kind": entry.kind, "name": member, **({"link": info.linkname} if entry.kind == "link" else {})}


def add_file(tar: tarfile.TarFile, file: IO[bytes], member: str, beat: Beat) -> dict[str, Any]:
    before = os.fstat(file.fileno())
    info = tar.gettarinfo(arcname=member, fileobj=file)
    if info is not None and info.islnk():  # another name of a file that is in the archive already
        tar.addfile(info)
        return {"kind": "hardlink", "name": member, "link": info.linkname}
    if info is None or not info.isreg():
        raise OSError(REPLACED)
    info.mtime = int(info.mtime)
    content = Content(file, info.size, beat)
    tar.addfile(info, cast(IO[bytes], content))
    after = os.fstat(file.fileno())
    line = {"kind": "file", "name": member, "bytes": info.size, "sha256": content.digest.hexdigest()}
    if content.problem:
        line["changed"] = content.problem
    elif (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        line["changed"] = "changed while it was read"
    return line


def open_file(path: str, flags: int) -> int:
    """Open a file that was a regular one a moment ago: no link is followed, no named pipe is waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


class Content:
    """The bytes of one file, hashed as they are read: exactly `size` of them, as its header says.

    A file that shrinks or breaks meanwhile is filled up with zeros, for the header is written by then;
    `problem` tells. Its errors end here, so that an OSError while the archive is written is always the
    target's.
    """

    def __init__(self, file: IO[bytes], size: int, beat: Beat) -> None:
        self.digest = hashlib.sha256()
        self.problem = ""
        self._file, self._left, self._beat = file, size, beat

    def read(self, count: int) -> bytes:
        count = min(count, self._left)
        data = b""
        if not self.problem:
            try:
                data = self._file.read(count)
            except OSError as error:
                self.problem = f"could not be read to its end: {reason(error)}"
        if len(data) < count:
            self.problem = self.problem or "became shorter while it was read"
            data = data.ljust(count, b"\0")
        self._left -= count
        self.digest.update(data)
        self._beat()
        return data


class Sink:
    """A new file that only its owner can read, hashed as it is written, on the disk when it is closed."""

    def __init__(self, path: str) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        discard(path)
        # O_EXCL: whoever may write in the target cannot lend us a file or a link of theirs.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "wb")

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())


# -- verify --------------------------------------------------------------------------------------------------


def verify_archive(plan: Plan, made: Archived, beat: Beat) -> int:
    """Read the whole archive back and compare it with the manifest; returns the number of its members.

    Raises Damaged with the first difference. The archive is then renamed to `.damaged`, so that no rotation
    keeps it in place of a good one.
    """
    try:
        return compare(plan, made, pulse(beat))
    except FileNotFoundError as error:
        raise Damaged(f"{error.filename} is gone") from error
    except (gzip.BadGzipFile, zlib.error, EOFError, tarfile.TarError, ValueError) as error:
        fault = f"cannot be read: {error}"
    except Difference as error:
        fault = str(error)
    damaged = made.archive + ".damaged"
    os.replace(made.archive, damaged)
    raise Damaged(f"the archive {os.path.basename(made.archive)} {fault}", facts=(f"it is now {damaged}",))


class Difference(Exception):
    """Archive and manifest tell different things."""


def compare(plan: Plan, made: Archived, beat: Beat) -> int:
    members = 0
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(open(made.archive, "rb"))
        listing = stack.enter_context(open(made.manifest, "rb"))
        if hashlib.file_digest(listing, "sha256").hexdigest() != made.manifest_sha256:
            raise Difference("has another manifest than was written")
        listing.seek(0)
        if hasattr(os, "posix_fadvise"):  # read it from the disk, not from the memory it was written through
            os.posix_fadvise(raw.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file = Reader(raw, beat)
        body: Any = file
        if plan.compress == "gz":
            body = stack.enter_context(gzip.GzipFile(fileobj=cast(Any, file), mode="rb"))
        tar = stack.enter_context(tarfile.open(fileobj=body, mode="r|"))
        for line in map(json.loads, listing):
            if line["kind"] == "skipped":
                continue
            compare_member(tar, tar.next(), line)
            members += 1
            forget_members(tar)
        if (extra := tar.next()) is not None:
            raise Difference(f"has a member too much: {readable(extra.name)}")
        drain(file)  # what comes after the last member counts too
        if file.digest.hexdigest() != made.sha256:
            raise Difference("is not the file that was written")
    return members


KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hardlink",
}


def compare_member(tar: tarfile.TarFile, found: tarfile.TarInfo | None, line: dict[str, Any]) -> None:
    name = readable(line["name"])
    if found is None:
        raise Difference(f"ends before {name}")
    there = (found.name, KINDS.get(found.type), found.linkname)
    if there != (line["name"], line["kind"], line.get("link", "")):
        raise Difference(f"has {readable(found.name)} where {name} was written")
    if line["kind"] != "file":
        return
    digest = hashlib.sha256()
    content = tar.extractfile(found)
    while content is not None and (data := content.read(1 << 18)):
        digest.update(data)
    if (found.size, digest.hexdigest()) != (line["bytes"], line["sha256"]):
        raise Difference(f"has other bytes in {name} than were read")


class Reader:
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes], beat: Beat) -> None:
        self.digest = hashlib.sha256()
        self._file, self._beat = file, beat

    def read(self, count: int) -> bytes:
        data = self._file.read(count)
        self.digest.update(data)
        self._beat()
        return data


# -- rotate and report ---------------------------------------------------------------------------------------


def rotate(plan: Plan, keep: int) -> list[str]:
    """Remove all but the newest `keep` archives of this source, with their manifests; returns their names.

    The one just written is among those that stay, also when the clock was set back. Only regular files go,
    and only those whose whole name is one that this program gives for this source.
    """
    own = os.path.basename(plan.archive)
    others = [name for name in archives(plan) if name != own]
    doomed = sorted(others, reverse=True)[keep - 1 :]
    for name in doomed:
        path = os.path.join(plan.target, name)
        discard(manifest_of(path))  # first: a manifest alone would never be found again
        discard(path)
    for path in leftovers(plan):
        discard(path)
    return doomed


def archives(plan: Plan) -> list[str]:
    """The names of this source's archives."""
    pattern = re.compile(re.escape(plan.prefix) + NAME_ENDS)
    with os.scandir(plan.target) as listing:
        return [e.name for e in listing if pattern.fullmatch(e.name) and e.is_file(follow_symlinks=False)]


def leftovers(plan: Plan) -> list[str]:
    """What runs of this source that nobody went on with have left half written, and long ago."""
    pattern = re.compile(re.escape(plan.prefix) + NAME_ENDS + r"(\.manifest)?\.partial")
    before = time.time() - STALE_AFTER
    with os.scandir(plan.target) as listing:
        return [e.path for e in listing if pattern.fullmatch(e.name) and e.stat().st_mtime < before]


def report(plan: Plan, made: Archived, rotated: list[str]) -> Report:
    """What the run did, and how the target stands."""
    kept = [os.path.join(plan.target, name) for name in archives(plan)]
    return Report(
        archive=made.archive,
        sha256=made.sha256,
        files=made.files,
        bytes=made.bytes,
        archive_bytes=made.size,
        skipped=made.skipped,
        changed=made.changed,
        examples=made.examples,
        rotated=rotated,
        kept=len(kept),
        kept_bytes=sum(os.path.getsize(path) for path in kept),
        free_bytes=shutil.disk_usage(plan.target).free,
    )


# -- small things --------------------------------------------------------------------------------------------


def manifest_of(archive: str) -> str:
    return archive + ".manifest"


def discard(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def forget_members(tar: tarfile.TarFile) -> None:
    """tarfile remembers every member, a kilobyte each, which nobody here asks for."""
    cast(Any, tar).members.clear()


def drain(file: Any) -> None:
    while file.read(1 << 18):
        pass


def sync_folder(path: str) -> None:
    """Make renames in a folder last. Some file systems cannot, and have no better to offer."""
    folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(folder)
    finally:
        os.close(folder)


def pulse(beat: Beat, every: float = 1.0) -> Beat:
    """Pass on a beat at most once in `every` seconds, however often it is called."""
    due = time.monotonic()

    def beat_if_due() -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + every
            beat()

    return beat_if_due


def reason(error: OSError) -> str:
    """Why a file was skipped: the system's words, or durable's own when it guards its database."""
    return error.strerror or str(error)


def readable(name: str) -> str:
    """A file name as text that can be stored: names need not be valid UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
