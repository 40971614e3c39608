"""Identity files: the id that the controller assigned to this broker.

    no file --> brokerIdentity-temp (id that is applied for) --> brokerIdentity (assigned id)

If the response to the application is lost, also by a crash, the broker applies again with the check
code in the temporary file, and gets the same id. Both files have Apache's format: fields separated
by `#`.

Source: BrokerMetadata, TempBrokerMetadata
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from duemq.net.fields import LONG_MAX
from duemq.replication.controller.requests import GroupName
from duemq_common import json_dialect
from duemq_common.errors import ConfigError, CorruptStore

SEPARATOR: Final = "#"
TEMPORARY: Final = "-temp"
FILE_BYTES_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Id of a member of a group, assigned or applied for.

    Attributes:
        group: The group.
        broker_id: The id, 1 or more.
        check_code: Text by which the controller recognizes the applicant; empty: the id is
            assigned.
    """

    group: GroupName
    broker_id: int
    check_code: str = ""

    @property
    def is_assigned(self) -> bool:
        """Whether the controller has assigned the id to this broker."""
        return not self.check_code


class IdentityFiles:
    """The two identity files. Methods block: call them in a thread.

    Args:
        path: Path of the file of an assigned id.

    Attributes:
        temporary_path: Path of the file of an id that is applied for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary_path = path.with_name(path.name + TEMPORARY)

    def load(self, group: GroupName) -> MemberIdentity | None:
        """Return the assigned id, else the id that is applied for; None: neither.

        Raises:
            CorruptStore: A file is damaged.
            ConfigError: The files belong to another group.
        """
        identity = self._read(self.path, 3) or self._read(self.temporary_path, 4)
        if identity is not None and identity.group != group:
            theirs = f"{identity.group.cluster}{SEPARATOR}{identity.group.broker_name}"
            reason = (
                f"the store belongs to the group {theirs} ({self.path}): set brokerClusterName and "
                "brokerName to it, or start with an empty store"
            )
            raise ConfigError("brokerName", group.broker_name, reason)
        return identity

    def store(self, identity: MemberIdentity) -> None:
        """Write an id to its file; for an assigned id, remove the temporary file.

        Raises:
            OSError: A file cannot be written.
        """
        group = identity.group
        words = [group.cluster, group.broker_name, str(identity.broker_id)]
        if not identity.is_assigned:
            words.append(identity.check_code)
            json_dialect.write_config(self.temporary_path, SEPARATOR.join(words))
            return
        json_dialect.write_config(self.path, SEPARATOR.join(words))
        self.drop_application()

    def drop_application(self) -> None:
        """Remove the temporary file.

        Raises:
            OSError: The file cannot be removed.
        """
        self.temporary_path.unlink(missing_ok=True)

    def _read(self, path: Path, words_count: int) -> MemberIdentity | None:
        try:
            with path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        try:
            words = data.decode().strip().split(SEPARATOR)
        except UnicodeDecodeError:
            words = []
        if len(data) > FILE_BYTES_MAX or len(words) != words_count or not all(words):
            raise self._corrupt(path)
        cluster, name, number, *rest = words
        if not (number.isascii() and number.isdigit() and 0 < int(number) <= LONG_MAX):
            raise self._corrupt(path)
        return MemberIdentity(GroupName(cluster, name), int(number), *rest)

    def _corrupt(self, path: Path) -> CorruptStore:
        form = "cluster#brokerName#brokerId"
        return CorruptStore(
            path,
            0,
            f"the content of the file is not {form}",
            f"Write {form} with this broker's id into it (mqadmin getSyncStateSet shows the ids), "
            "or delete it: the broker then joins its group with a new id.",
        )


def check_group(group: GroupName) -> None:
    """Check that the names of a group can be stored in the identity files.

    Raises:
        ConfigError: A name contains the separator.
    """
    for key, name in (("brokerClusterName", group.cluster), ("brokerName", group.broker_name)):
        if SEPARATOR in name:
            raise ConfigError(key, name, f"must not contain {SEPARATOR} with enableControllerMode")
