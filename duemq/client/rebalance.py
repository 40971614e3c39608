"""Rebalancing: the queues of a consumer, as the group and the routes change.

routes, members --> allocated queues --> locked --> start offset --> pulled
                                `--> given up: handlers end, offset committed, unlocked
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from duemq.client.client import Client
from duemq.client.errors import ClientError, Unreachable
from duemq.client.handlers import HandlerPool
from duemq.client.locks import LOCK_S, QueueLocks
from duemq.client.message import MessageQueue
from duemq.client.process_queue import FlowLimits, ProcessQueue
from duemq.client.pull_consumer import PullConsumer
from duemq.client.pulls import QueuePulls
from duemq.client.queue_offsets import QueueOffsets, start_offset
from duemq.client.routes import TopicRoute, json_object
from duemq.client.subscriptions import ConsumerSettings, TopicSubscription
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.log_lines import FailureLog
from duemq_common.topics import RETRY_PREFIX

log = logging.getLogger(__name__)
REPEAT_S: Final = 1.0  # interval of turns while queues are missing
RETRY_TOPIC_TURNS: Final = 10  # turns in which the broker should create the group's retry topic
_Q = TypeVar("_Q")


def allocated(queues: Sequence[_Q], members: Sequence[str], member: str) -> list[_Q]:
    """Return the queues of a member: consecutive ones, as many as the others have or one more.

    Args:
        queues: Queues of a topic in the order that all members use.
        members: Client ids of the group, in any order.
        member: Client id; an unknown member gets no queues.
    Source: AllocateMessageQueueAveragely
    """
    ids = sorted(members)
    if member not in ids:
        return []
    index = ids.index(member)
    share, rest = divmod(len(queues), len(ids))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


class Rebalance:
    """Assigned queues of a consumer.

    Args:
        subscriptions: Subscription by topic; None for the group's retry topic.
        reader: Reader of the group's offsets.
        offsets: Committed offsets of the group.
    Attributes:
        queues: Assigned queues.
    """

    def __init__(
        self,
        client: Client,
        reader: PullConsumer,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, TopicSubscription | None],
        offsets: QueueOffsets,
        limits: FlowLimits,
        pool: HandlerPool,
    ) -> None:
        self._client, self._reader, self._settings = client, reader, settings
        self._subscriptions, self._offsets = subscriptions, offsets
        self._limits, self._pool = limits, pool
        self._pulls = QueuePulls(client, reader.group, settings.poll_s, limits, pool, self.restart)
        self._locks = QueueLocks(client, reader.group)
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        self._leaving: dict[MessageQueue, asyncio.Task[object]] = {}
        self._changed = asyncio.Event()
        self._committing = asyncio.Lock()  # a broker may handle two commits in the other order
        self._turns = 0
        self._failures = FailureLog(log)

    # Turns.

    def change(self) -> None:
        """Run a turn at once: the group, a route or the subscriptions have changed."""
        self._changed.set()

    async def repeat(self) -> None:
        """Rebalance every 20 s and after each change, until cancelled."""
        while True:
            self._changed.clear()
            try:
                is_complete = await self.turn()
            except Exception:
                log.exception("the queues are not rebalanced")
                is_complete = False
            interval_s = self._settings.rebalance_s if is_complete else REPEAT_S
            try:
                async with asyncio.timeout(interval_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def turn(self) -> bool:
        """Take and give up queues; return whether all allocated queues are taken."""
        is_complete = True
        self._turns += 1
        for topic in list(self._subscriptions):
            try:
                is_complete &= await self._rebalance(topic)
                self._failures.succeeded(topic)
            except ClientError as error:
                self._failures.failed(topic, error, "the queues of topic %s do not change", topic)
                is_complete = False
        for queue in list(self.queues):
            if queue.topic not in self._subscriptions:
                self._give_up(queue)
        if self._settings.has_locks:
            await self._renew_locks()
        return is_complete and not self._leaving

    async def _rebalance(self, topic: str) -> bool:
        route = await self._client.refresh_route(topic)
        if route is None:  # its broker may be away: the queues are kept
            waits = topic.startswith(RETRY_PREFIX) and self._turns < RETRY_TOPIC_TURNS
            return not waits and not any(queue.topic == topic for queue in self.queues)
        chosen: Sequence[MessageQueue] = route.read_queues
        if not self._settings.is_broadcast:
            members = await self._members(route)
            if self._client.client_id not in members:
                await self._client.heartbeats.send()  # brokers forget a consumer after 120 s
                return False
            chosen = allocated(chosen, members, self._client.client_id)
        for queue in [queue for queue in self.queues if queue.topic == topic]:
            if queue not in chosen:
                self._give_up(queue)
        missing = [queue for queue in chosen if queue not in self.queues]
        free = [queue for queue in missing if queue not in self._leaving]
        until_s = float("inf")
        if free and self._settings.has_locks:
            until_s = asyncio.get_running_loop().time() + LOCK_S
            locked, _ = await self._locks.lock(free)
            free = [queue for queue in free if queue in locked]
        results = [await self._take(queue, until_s) for queue in free]
        return all(results) and len(free) == len(missing)

    async def _members(self, route: TopicRoute) -> list[str]:
        """Return the client ids of the group, after this client has registered.

        Raises:
            Unreachable: No broker responds.
        """
        addresses = [each for ids in route.addresses.values() for each in ids.values()]
        await self._client.heartbeats.before_use(addresses)
        fields = {"consumerGroup": self._reader.group}
        errors = []
        for address in addresses:
            try:
                response = await self._client.call(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields
                )
                if response.code == ResponseCode.SUCCESS:
                    return [str(each) for each in json_object(response).get("consumerIdList", [])]
                await self._client.heartbeats.send([address])
                errors.append(response.remark or f"code {response.code}")
            except (ClientError, ValueError) as error:
                errors.append(str(error))
        raise Unreachable(f"no broker has the members of the group: {'; '.join(errors)}")

    async def _renew_locks(self) -> None:
        """Renew the locks of all queues; give up those that another consumer has locked."""
        if not self.queues:
            return
        until_s = asyncio.get_running_loop().time() + LOCK_S
        locked, foreign = await self._locks.lock(self.queues)
        for queue in locked:
            if process_queue := self.queues.get(queue):
                process_queue.locked_until_s = until_s
                self._pool.schedule(process_queue)
        for queue in foreign & self.queues.keys():
            log.warning("another consumer has locked %s", queue)
            self._limits.drop(self.queues.pop(queue))
            self.change()

    # Queues.

    async def _take(self, queue: MessageQueue, locked_until_s: float) -> bool:
        """Take a queue; return whether its offset is available."""
        try:
            committed = await self._offsets.committed(queue)
            offset = committed
            if offset is None:
                offset = await start_offset(self._reader, queue, self._settings.consume_from)
        except ClientError as error:
            self._failures.failed(queue, error, "%s has no offset yet", queue)
            return False
        self._failures.succeeded(queue)
        if queue.topic not in self._subscriptions:  # unsubscribed meanwhile
            return False
        self._start(queue, offset, committed, locked_until_s)
        return True

    def _start(
        self, queue: MessageQueue, offset: int, committed: int | None, locked_until_s: float
    ) -> None:
        process_queue = ProcessQueue(queue, self._subscriptions.get(queue.topic), offset, committed)
        process_queue.locked_until_s = locked_until_s
        self.queues[queue] = process_queue
        self._pulls.start(process_queue)

    async def leave_topic(self, topic: str) -> None:
        """Give up the queues of a topic; return when their offsets are committed."""
        for queue in [queue for queue in self.queues if queue.topic == topic]:
            self._give_up(queue)
        leaving = [task for queue, task in self._leaving.items() if queue.topic == topic]
        await asyncio.gather(*leaving, return_exceptions=True)

    def _give_up(self, queue: MessageQueue) -> None:
        """Stop a queue; its handlers end before another consumer may lock it."""
        process_queue = self.queues.pop(queue)
        process_queue.stop()
        work = self._leave(process_queue)
        self._leaving[queue] = self._client.run(work, f"give up {queue}")

    async def _leave(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        try:
            if self._settings.has_locks:
                await process_queue.idle()
            offset = process_queue.lowest()
            self._limits.drop(process_queue)
            if process_queue.committed != offset:
                async with self._committing:
                    await self._offsets.commit({queue: offset})
            if self._settings.has_locks:
                await self._locks.unlock([queue])
        finally:
            del self._leaving[queue]
            self.change()

    async def restart(self, process_queue: ProcessQueue, offset: int) -> None:
        """Continue a queue at another offset; messages that were pulled are pulled again."""
        queue = process_queue.queue
        if self.queues.get(queue) is not process_queue:
            return
        log.warning(
            "%s continues at offset %d instead of %d", queue, offset, process_queue.lowest()
        )
        self._limits.drop(process_queue)
        if self._settings.ordered:
            await process_queue.idle()
        async with self._committing:
            committed = await self._offsets.commit({queue: offset})
        if self.queues.get(queue) is process_queue:
            until_s = process_queue.locked_until_s
            self._start(queue, offset, offset if committed else None, until_s)

    # Offsets.

    async def repeat_commits(self) -> None:
        """Commit offsets every 5 s, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.commit_s)
            try:
                # A commit that is sent must end before the next one, also at `close`.
                work = self.commit(self.queues.values())
                await asyncio.shield(self._client.run(work, "commit"))
                self._failures.succeeded(None)
            except OSError as error:
                self._failures.failed(None, error, "offsets are not committed")

    async def commit(self, process_queues: Iterable[ProcessQueue]) -> None:
        """Commit the offsets of queues that have changed."""
        async with self._committing:
            offsets = {
                each.queue: each.lowest()
                for each in process_queues
                if not each.dropped and each.committed != each.lowest()
            }
            committed = await self._offsets.commit(offsets) if offsets else set()
            for queue in committed & self.queues.keys():
                self.queues[queue].committed = offsets[queue]

    async def close(self) -> None:
        """Commit and unlock all queues; the handlers have ended."""
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        await self.commit(self.queues.values())
        if self._settings.has_locks:
            await self._locks.unlock(self.queues)
        self.stop_pulls()
        self.queues.clear()

    def stop_pulls(self) -> None:
        """Cancel the pulls of all queues; messages that were pulled remain pending."""
        for process_queue in self.queues.values():
            if process_queue.pulling is not None:
                process_queue.pulling.cancel()
