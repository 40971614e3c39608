"""Batch of acknowledgements from several requests, appended with one call."""

from __future__ import annotations

from msgspec import Struct, field

from duemq.pop.acks import AckProcessor
from duemq.pop.merged_acks import AckKey, MergedAcks
from duemq.pop.revive_log import ReviveLog
from duemq_common.request import Request


class AckBatch(Struct):
    """Acknowledgements (200051) that one call of `put` appends.

    Attributes:
        processor: Checks the requests.
        revive_log: Receives the records.
        confirms: Whether responses must wait for the disk or for replicas.
    """

    processor: AckProcessor
    revive_log: ReviveLog
    confirms: bool
    _merged: MergedAcks = field(default_factory=MergedAcks)

    def add(self, request: Request) -> AckKey | None:
        """Add the acknowledgement of a request whose permission is already checked.

        Returns:
            Key of the record; None for an orderly pop, whose acknowledgement has no record.
        Raises:
            RequestError: The request is invalid, or names a message that does not exist.
        """
        entry = self.processor.admit(request)
        return None if entry is None else self._merged.add(*entry)

    def put(self) -> dict[AckKey, Exception]:
        """Append the records; return the errors of refused records by their key."""
        return self.revive_log.put_merged(self._merged)

    async def confirm(self) -> None:
        """Wait until the disk and the replicas have the records, as far as configured.

        Raises:
            RequestError: The wait timed out; the records are in the log.
        """
        await self.revive_log.confirm("the message was acknowledged")
