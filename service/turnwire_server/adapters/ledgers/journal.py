"""The instance journal: a file that says what a server process has open, and that it lives.

Each process has one, `<instance id>.journal`, in a directory that the processes of a machine
share. It is locked (flock) for as long as the process lives, however it ends: a journal whose lock
is free belongs to a dead process, and who takes the lock clears up after it. Lines are appended
with one write each and never synced: they survive the process, not the machine's power.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from turnwire_server.adapters.ledgers.journal_lines import (
    JournalState,
    header_line,
    read_lines,
)
from turnwire_server.ports.ledger import LedgerFailure

if sys.platform != "win32":
    import fcntl

__all__ = ["DeadJournal", "InstanceJournal", "take_dead_journals"]

_SUFFIX: Final = ".journal"
_DRAFT_SUFFIX: Final = ".journal-draft"
_TRIES: Final = 10


class InstanceJournal:
    """The journal of this process. Used on one thread."""

    def __init__(self, path: Path, descriptor: int, size: int, *, database: str) -> None:
        """Take a journal that is locked; use `create`."""
        self.path = path
        self.database = database
        """Where its records go."""
        self.size = size
        """Bytes."""
        self._descriptor = descriptor
        self._is_torn = False

    @classmethod
    def create(cls, directory: Path, instance_id: str, *, database: str) -> InstanceJournal:
        """Make the journal of this process, and the directory if there is none; blocks briefly.

        Args:
            directory: Where the journals of a machine's processes are.
            instance_id: What the process is called; a file name.
            database: What its database is called, the same for all processes that use it.

        Raises:
            LedgerFailure: It cannot be made.
        """
        if sys.platform == "win32":
            raise LedgerFailure(
                "The ledger's journal needs POSIX file locks; keep everything in memory here: "
                "database.url = 'memory'."
            )
        path = directory / f"{instance_id}{_SUFFIX}"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            header = header_line(database)
            return cls(path, _create(path, header), len(header), database=database)
        except OSError as error:
            raise LedgerFailure(
                f"{directory}: the ledger's journal cannot be made: {error.strerror}."
            ) from None

    @property
    def instance_id(self) -> str:
        """Whose journal it is."""
        return _instance_id(self.path)

    def append(self, line: bytes) -> None:
        """Append a whole line with one write.

        Raises:
            OSError: It is not there, or not all of it; what follows is not harmed.
        """
        # Behind a torn line, so that it does not take this one with it.
        content = b"\n" + line if self._is_torn else line
        written = os.write(self._descriptor, content)
        self.size += written
        self._is_torn = written < len(content)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def rewrite(self, content: bytes) -> None:
        """Put whole lines in the place of everything, at once or not at all; blocks briefly.

        Raises:
            OSError: It cannot be done; the journal is as it was.
        """
        descriptor = _create(self.path, content)
        os.close(self._descriptor)
        self._descriptor, self.size, self._is_torn = descriptor, len(content), False

    def close(self, *, remove: bool) -> None:
        """Give the lock back; `remove` the file if nothing in it is needed any more. Once."""
        if remove:
            with suppress(OSError):  # an empty journal that stays is taken by the next start
                self.path.unlink()
        os.close(self._descriptor)


class DeadJournal:
    """The journal of a dead process, locked by this one until it is let go or removed."""

    def __init__(self, path: Path, descriptor: int, state: JournalState) -> None:
        self._path = path
        self._descriptor = descriptor
        self.state = state

    @property
    def instance_id(self) -> str:
        """Whose journal it was."""
        return _instance_id(self._path)

    def remove(self) -> None:
        """Remove it: everything of the dead process was cleared up. Once, instead of `let_go`."""
        with suppress(OSError):  # the next start finds it and does it all again, to no effect
            self._path.unlink()
        os.close(self._descriptor)

    def let_go(self) -> None:
        """Leave it to the next start. Once, instead of `remove`."""
        os.close(self._descriptor)


def take_dead_journals(directory: Path) -> Sequence[DeadJournal]:
    """Return the journals of dead processes, locked, so that no other process takes them; blocks.

    Raises:
        LedgerFailure: One of them cannot be read.
    """
    for draft in directory.glob(f"*{_DRAFT_SUFFIX}"):
        _drop_draft(draft)
    taken: list[DeadJournal] = []
    try:
        for path in sorted(directory.glob(f"*{_SUFFIX}")):
            descriptor = _lock_dead(path)
            if descriptor is not None:
                with open(descriptor, "rb", closefd=False) as file:
                    taken.append(DeadJournal(path, descriptor, read_lines(file.read())))
    except OSError as error:
        for journal in taken:
            journal.let_go()
        raise LedgerFailure(
            f"{directory}: the journals of other processes cannot be read: {error.strerror}."
        ) from None
    return taken


def _create(path: Path, content: bytes) -> int:
    """Put a locked file with `content` at `path`, in the place of one that is there."""
    draft = path.with_suffix(_DRAFT_SUFFIX)
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            draft.unlink()
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            # It gets its name when it is locked: nobody may take it for that of a dead process.
            if not _lock(descriptor):
                os.close(descriptor)  # another process drops what it takes for an old draft
                continue
            if os.write(descriptor, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.rename(draft, path)
        except FileNotFoundError:
            os.close(descriptor)
            continue
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _lock_dead(path: Path) -> int | None:
    """Return a locked descriptor of the journal at `path`, None when its process lives."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:  # its process has just ended in order
        return None
    # The lock of a file that was rewritten meanwhile is free, and says nothing.
    if _lock(descriptor) and _is_at(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def _drop_draft(draft: Path) -> None:
    """Remove a draft whose process died before it was a journal."""
    with suppress(OSError):
        descriptor = os.open(draft, os.O_RDWR)
        try:
            if _lock(descriptor) and _is_at(descriptor, draft):
                draft.unlink()
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _instance_id(path: Path) -> str:
    return path.name.removesuffix(_SUFFIX)
