"""Retry topics whose name several groups and topics have.

    %RETRY%a_b_c   group a, topic b_c   copies of POP: not acknowledged in time
                   group a_b, topic c   copies of POP
                   group a_b_c          messages that its consumers sent back

Apache's names are ambiguous. With accounts, a group reads such a topic only if the account may read
for each of these that exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from duemq.auth.model import Action
from duemq.auth.record_access import RecordAccess
from duemq.registry.groups import GroupManager
from duemq.registry.topics import TopicManager
from duemq_common.request import Request
from duemq_common.topics import RETRY_PREFIX

SEPARATOR: Final = "_"


def owners(retry_topic: str) -> Iterator[tuple[str, str]]:
    """Yield each group and topic that a retry topic's name may stand for; no topic: the group's."""
    name = retry_topic.removeprefix(RETRY_PREFIX)
    yield name, ""
    position = name.find(SEPARATOR)
    while position >= 0:
        yield name[:position], name[position + 1 :]
        position = name.find(SEPARATOR, position + 1)


class SharedRetries:
    """Check of the permissions for retry topics."""

    def __init__(self, records: RecordAccess, topics: TopicManager, groups: GroupManager) -> None:
        self._records, self._topics, self._groups = records, topics, groups

    def check(self, request: Request, retry_topic: str, own: tuple[str, str]) -> None:
        """Check that an account may read for each group and topic that a retry topic belongs to.

        Args:
            own: Group and topic of the request; their permissions are checked already.
        Raises:
            RequestError: The permission for a group, or for a topic, is missing.
        """
        for group, topic in owners(retry_topic):
            if (group, topic) == own:
                continue
            if self._groups.find(group) and (not topic or self._topics.find(topic)):
                self._records.check_record(request, RETRY_PREFIX + group, Action.SUB)
                if topic:
                    self._records.check_record(request, topic, Action.SUB)
