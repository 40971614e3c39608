"""`duemq timers transfer`: move pending messages of one broker to other ones.

    page of the source --> the target stores each message --> the source cancels them

A message is cancelled only after the target has confirmed it. After an interruption between both
steps it is pending at both brokers until the transfer runs again, which finds it at the target and
cancels it. Messages that are due soon stay, since the source could deliver them meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, NamedTuple

from duemq.cli.decoded_page import decode_page
from duemq.cli.exits import Exit, fail
from duemq.cli.message_file import FileMessage
from duemq.cli.options import Target
from duemq.cli.output import console, notice, print_json_line, print_table
from duemq.cli.sending_once import EXISTS, REFUSED, SEND, OnceSender
from duemq.cli.timers_export import DAMAGED, LEFT_OUT, pages_of
from duemq.client.client import Client
from duemq.client.decisions import PendingDecisions
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError, UsageError
from message_store.log.offset_id import encode_offset_id

BATCH_MESSAGES: Final = 500
MOVED, EXISTED, SOON, SHARED, DIFFERENT, DELIVERED = (
    "transferred",
    "was at the target, cancelled at the source",
    "stays: due soon",
    "stays: other pending messages have its id",
    "stays: the target has another message with its id",
    "delivered by the source meanwhile",
)
STATES: Final = (MOVED, EXISTED, SOON, SHARED, DIFFERENT, DELIVERED, REFUSED, LEFT_OUT, DAMAGED)


class PendingRecord(NamedTuple):
    """Pending message of the source.

    Attributes:
        offset_id: Offset message id of its record.
    """

    message: FileMessage
    due_ms: int
    offset_id: str


class BrokerTransfer:
    """Transfer from one broker to a cluster.

    Args:
        address: `host:port` of the source.
        margin_ms: Messages due within this time from now stay.
        dry_run: Whether nothing is sent and cancelled.
    Attributes:
        counts: Number of messages by `STATES`.
    """

    def __init__(
        self, source: Client, address: str, target: Client, *, margin_ms: int, dry_run: bool
    ) -> None:
        self._source, self._address = source, address
        self._sender, self._dry_run = OnceSender(target), dry_run
        self._margin_ms = margin_ms
        self._at_source = PendingDecisions(client=source)
        self._at_target = PendingDecisions(client=target)
        self._clock = source.clock
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        """Transfer all messages that are pending now.

        Raises:
            ClientError: A broker does not respond or refuses; the next run continues.
        """
        async for page in pages_of(self._source, self._address):
            decoded = decode_page(page)
            self.counts[DAMAGED] += decoded.damaged
            self.counts[LEFT_OUT] += decoded.left_out
            records = [
                PendingRecord(
                    line.message(), line.due_ms, encode_offset_id(*host, line.phys_offset)
                )
                for line, host in zip(decoded.lines, decoded.store_hosts, strict=True)
            ]
            for first in range(0, len(records), BATCH_MESSAGES):
                await self._transfer(records[first : first + BATCH_MESSAGES])

    async def _transfer(self, records: list[PendingRecord]) -> None:
        earliest_ms = self._clock.now_ms() + self._margin_ms
        later = [each for each in records if each.due_ms >= earliest_ms]
        self.counts[SOON] += len(records) - len(later)
        await self._check_source(later)
        later = await self._without_shared(later)
        messages = [each.message for each in later]
        actions = await self._sender.actions(messages)
        due_times = await self._due_at_target(messages, actions)
        if self._dry_run:
            outcomes = actions
        else:
            new = [each for each, action in zip(messages, actions, strict=True) if action == SEND]
            sent = iter(await self._sender.send_all(new))
            outcomes = [next(sent) if action == SEND else action for action in actions]
        stored: list[tuple[PendingRecord, str]] = []
        for record, message, outcome in zip(later, messages, outcomes, strict=True):
            if outcome == REFUSED:
                self.counts[REFUSED] += 1
                notice(f"{message.unique_id}: {self._sender.refusals[_key(message)]}")
            elif outcome == EXISTS and due_times.get(_key(message)) != record.due_ms:
                self.counts[DIFFERENT] += 1
                notice(f"{message.unique_id}: {DIFFERENT}")
            else:
                stored.append((record, MOVED if outcome == SEND else EXISTED))
        await self._cancel(stored)

    async def _check_source(self, records: list[PendingRecord]) -> None:
        """Check that the source can cancel messages, before the target gets them.

        Raises:
            RequestError: It refuses writes, for example because its disk is full.
        """
        ids = [each.offset_id for each in records]
        for result in await self._at_source.cancel(ids=ids, dry_run=True) if ids else ():
            if result.verdict == "refused":
                text = f"{self._address} cannot cancel messages, so none are sent: {result.remark}"
                raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, text)

    async def _without_shared(self, records: list[PendingRecord]) -> list[PendingRecord]:
        """Return the records without those whose id several pending messages have.

        The target does not report which of them it has: after an interruption, another one would be
        cancelled.
        """
        by_topic: dict[str, list[str]] = {}
        for record in records:
            by_topic.setdefault(record.message.topic, []).append(record.message.unique_id)
        shared: set[tuple[str, str]] = set()
        for topic, ids in by_topic.items():
            names = list(dict.fromkeys(ids))
            for result in await self._at_source.cancel(ids=names, topic=topic, dry_run=True):
                if result.messages > 1:
                    shared.add((topic, result.name))
        kept = [record for record in records if _key(record.message) not in shared]
        self.counts[SHARED] += len(records) - len(kept)
        return kept

    async def _due_at_target(
        self, messages: list[FileMessage], actions: list[str]
    ) -> dict[tuple[str, str], int]:
        """Return the due times of messages that are pending at the target."""
        by_topic: dict[str, list[str]] = {}
        for message, action in zip(messages, actions, strict=True):
            if action == EXISTS:
                by_topic.setdefault(message.topic, []).append(message.unique_id)
        due_times: dict[tuple[str, str], int] = {}
        for topic, ids in by_topic.items():
            for result in await self._at_target.cancel(ids=ids, topic=topic, dry_run=True):
                if result.verdict == "done":
                    due_times[topic, result.name] = result.due_ms
        return due_times

    async def _cancel(self, stored: list[tuple[PendingRecord, str]]) -> None:
        """Cancel messages at the source that the target has stored."""
        if self._dry_run or not stored:
            self.counts.update(state for _, state in stored)
            return
        results = await self._at_source.cancel(ids=[record.offset_id for record, _ in stored])
        for (record, state), result in zip(stored, results, strict=True):
            if result.verdict == "done":
                self.counts[state] += 1
            elif result.verdict == "refused":
                raise UsageError(
                    f"{self._address} refused to cancel {record.message.unique_id}, which the "
                    f"target has, too: {result.remark}. Remove the cause and transfer again"
                )
            else:
                self.counts[DELIVERED] += 1
                await self._withdraw(record)

    async def _withdraw(self, record: PendingRecord) -> None:
        """Cancel at the target what the source has delivered or cancelled meanwhile."""
        message = record.message
        [result] = await self._at_target.cancel(ids=[message.unique_id], topic=message.topic)
        done = "cancelled at the target" if result.verdict == "done" else "delivered twice"
        notice(f"{message.unique_id}: {DELIVERED}; {done}")


def _key(message: FileMessage) -> tuple[str, str]:
    return message.topic, message.unique_id


def transfer(target: Target, to: str, *, margin_ms: int, really: bool) -> None:
    """Transfer the pending messages of the broker to another one, and print the counts."""
    if not target.broker:
        raise UsageError("no source given: add --broker HOST:PORT")
    if to == target.broker:
        raise UsageError("--to and --broker are the same broker")
    counts = asyncio.run(_run(target, to, margin_ms, really=really))
    if target.as_json:
        states = {name: counts[name] for name in STATES}
        print_json_line({"dry_run": not really, "messages": states})
    else:
        rows = [(name, f"{counts[name]:,}") for name in STATES if counts[name]]
        print_table(f"{target.broker} to {to}", ("pending", "#messages"), rows)
        if not really:
            console().print("Nothing was transferred: this was a dry run. Add --yes to transfer.")
    if counts[REFUSED]:
        fail(f"the target refused {counts[REFUSED]} messages, which stay", Exit.REFUSED)


async def _run(target: Target, to: str, margin_ms: int, *, really: bool) -> Counter[str]:
    from dataclasses import replace

    async with target.client() as source, replace(target, broker=to).client() as other:
        step = BrokerTransfer(source, target.broker, other, margin_ms=margin_ms, dry_run=not really)
        await step.run()
        return step.counts
