"""Confirmed offset of a member of a group, in a file next to the store.

    /data/store              the store
    /data/store.confirmed    cluster#brokerName#id#offset: the log was synced up to the offset

An old copy of a store (a restored backup) is a sound store, but lacks messages that the group has
acknowledged. The file shows it: the log ends before the offset. Such a member is not elected until
it has copied the log from a master; without one, the operator decides, and removes the file.

The file is not below the store, because a copy of the store would contain it. A store without an
identity is new and no copy: the file is ignored.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from duemq.replication.controller.identity import SEPARATOR, MemberIdentity
from duemq_common.directories import write_synced

log = logging.getLogger(__name__)
SUFFIX: Final = ".confirmed"
FILE_BYTES_MAX: Final = 4_096


class ConfirmedFile:
    """File of one member. Methods block: call them in a thread, except `refusal`.

    Args:
        root: Directory of the store.
        identity: Assigned id of the member in this store, None without one.

    Attributes:
        offset: Log offset in the file; 0 without a valid one.
    """

    def __init__(self, root: Path, identity: MemberIdentity | None) -> None:
        self.path = root.with_name(root.name + SUFFIX)
        self.offset = 0 if identity is None else self._read(identity)
        self._failed = False

    def refusal(self, log_end: int | None) -> str:
        """Return the reason why this member must not be elected, or an empty text.

        Args:
            log_end: End of the log; None: it is not open yet.
        """
        if log_end is None:
            return "the log is not open yet" if self.offset else ""
        if log_end >= self.offset:
            return ""
        return (
            f"the log of this broker ends at {log_end}, but it has confirmed messages up to "
            f"{self.offset} ({self.path}): the store is an old copy, or has lost its end. It is "
            "not elected before it has copied the log from a master: start the other members. To "
            "lose these messages instead, remove this file and restart the broker (docs: Back up "
            "and restore)"
        )

    def record(self, identity: MemberIdentity, offset: int) -> None:
        """Write an offset that is after the one in the file; errors of the disk are logged once."""
        if offset > self.offset:
            self._write(identity, offset)

    def truncate(self, identity: MemberIdentity, offset: int) -> None:
        """Lower the offset, because the log was truncated there: the group did not confirm more."""
        if offset < self.offset:
            self._write(identity, offset)

    def _write(self, identity: MemberIdentity, offset: int) -> None:
        words = [identity.group.cluster, identity.group.broker_name, str(identity.broker_id)]
        temporary = self.path.with_name(self.path.name + ".tmp")
        try:
            write_synced(temporary, SEPARATOR.join([*words, str(offset)]).encode())
            os.replace(temporary, self.path)
        except OSError as error:
            if not self._failed:
                log.warning(
                    "%s cannot be written: %s. An old copy of the store would not be recognized",
                    self.path,
                    error.strerror,
                )
            self._failed = True
            return
        self.offset, self._failed = offset, False

    def _read(self, identity: MemberIdentity) -> int:
        try:
            with self.path.open("rb") as file:
                words = file.read(FILE_BYTES_MAX).decode("utf-8", "replace").split(SEPARATOR)
        except OSError:
            return 0
        group = identity.group
        is_own = words[:-1] == [group.cluster, group.broker_name, str(identity.broker_id)]
        text = words[-1]
        if is_own and text.isascii() and text.isdigit() and len(text) < 19:
            return int(text)
        log.warning("%s is ignored: it has no offset of member %d", self.path, identity.broker_id)
        return 0
