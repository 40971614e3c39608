"""Pull requests (codes 11, 361): messages, long polling, offset commits. PullMessageProcessor"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from duemq.auth.record_access import RecordAccess, UnrestrictedAccess
from duemq.auth.signature import ACCESS_KEY, account_of
from duemq.configuration.config import BrokerConfig
from duemq.configuration.replication_config import ReplicationConfig
from duemq.metrics.put_get_stats import BrokerStats
from duemq.net import fields
from duemq.net.dispatcher import Deferred, Handler, LaterResponse
from duemq.pull.layout import BLANK_UNIT_SIZE
from duemq.pull.long_polls import LongPoll, LongPolls, ResumeReason
from duemq.pull.pull_plan import (
    FOUND,
    NO_MATCH,
    PullOutcome,
    PullRequest,
    StoreLimits,
    exclude_unit,
    outcome_of_offset,
    select_units,
    units_to_read,
)
from duemq.pull.pull_subscription import (
    FORBIDDEN_BROKER,
    FORBIDDEN_GROUP,
    FORBIDDEN_TOPIC,
    Forbidden,
    PullSubscriptions,
)
from duemq.pull.record_filter import RecordFilter, units_evaluated
from duemq.registry.clients import ClientTable
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupConfig, GroupManager
from duemq.registry.internal_topics import may_read
from duemq.registry.shared_retries import SharedRetries
from duemq.registry.subscriptions import Subscription
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topics import TopicManager
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError, UnitsRewritten
from duemq_common.request import Request, Response
from duemq_common.topics import PERM_READ, RETRY_PREFIX

if TYPE_CHECKING:
    from message_store.store import MessageStore

RETRY = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
ACCOUNTS_CHANGED = "the accounts have changed: pull again"
PULL_FROM_MASTER = "this replica serves no pulls (slaveReadEnable=false): pull from the master"
UNREADABLE_MAX = 16  # maximum damaged records that one pull skips


class CheckedPull(Struct, gc=False):
    """Pull that passed all checks.

    Attributes:
        more: Whether the queue has messages that are not readable yet.
        first, end: Queue offsets of the first, and after the last, readable message.
    """

    request: PullRequest
    group: GroupConfig
    topic: TopicConfig
    subscription: Subscription
    more: bool = False
    first: int = 0
    end: int = 0


class HeldPull(LaterResponse, gc=False, eq=False, kw_only=True):
    """Pull on hold.

    Attributes:
        version: Version of the accounts at the check.
        poll: None: it is released.
    """

    processor: PullProcessor
    checked: CheckedPull
    version: int
    poll: LongPoll | None = None

    def resume(self, reason: ResumeReason) -> None:
        """Continue the pull, whose long poll is released."""
        poll, self.poll = self.poll, None
        if poll is not None:
            self.processor.resume(self, poll, reason)

    def cancel(self) -> None:
        """End the pull without a response."""
        poll, self.poll = self.poll, None
        if poll is not None:
            self.processor.release(poll)
        LaterResponse.cancel(self)


class PullProcessor:
    """Handler of codes 11 and 361.

    Args:
        records: Access of accounts, whose version changes with them.
        replication: Returns the replication section; without slaveReadEnable a replica serves no
            pulls.
        retries: Check of the permissions for retry topics; None: no accounts.
        compiled: Returns whether the filter kernels are compiled.
        long_polls: Pulls on hold; its `on_append` must be a dispatcher of the store.

    Attributes:
        config: Current configuration.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        clients: ClientTable,
        long_polls: LongPolls,
        stats: BrokerStats,
        config: BrokerConfig,
        replication: Callable[[], ReplicationConfig] = ReplicationConfig,
        records: RecordAccess | None = None,
        compiled: Callable[[], bool] = lambda: True,
        retries: SharedRetries | None = None,
    ) -> None:
        self._compiled = compiled
        self._records, self._retries = records or UnrestrictedAccess(), retries
        self._replication = replication
        self._store, self._topics, self._groups = store, topics, groups
        self._offsets, self._clients, self._long_polls = offsets, clients, long_polls
        self._stats, self.config = stats, config
        self._limits = StoreLimits(store)
        self._subscriptions = PullSubscriptions(clients)

    def handlers(self) -> dict[int, Handler]:
        pull = self._clients.filters.after_compiling(self.pull)
        return {RequestCode.PULL_MESSAGE: pull, RequestCode.LITE_PULL_MESSAGE: pull}

    def pull(self, request: Request) -> Response | Deferred:
        """Return the response, at once or after a long poll.

        A long poll ends at a new message or its deadline, without a response if the client
        disconnects.
        """
        try:
            checked = self._check(request)
        except Forbidden as refusal:
            return refusal.response()
        role = self._replication()
        if role.is_replica and not role.slave_read_enable:
            self._read_bounds(checked)
            return self._response(
                checked, PullOutcome(RETRY, PULL_FROM_MASTER, checked.request.offset)
            )
        outcome = self._read(checked)
        pull = checked.request
        self._offsets.commit_pull(pull.group, pull.topic, pull.queue_id, outcome.next_offset)
        commits = pull.has(PullRequest.COMMIT) and pull.commit_offset >= 0
        if commits and not role.is_replica:
            self._offsets.commit(
                pull.group,
                pull.topic,
                pull.queue_id,
                pull.commit_offset,
            )
        if outcome.code != ResponseCode.PULL_NOT_FOUND or not pull.has(PullRequest.SUSPEND):
            return self._response(checked, outcome)
        return self._hold(request, checked, outcome)

    def _hold(
        self, request: Request, checked: CheckedPull, outcome: PullOutcome
    ) -> Response | Deferred:
        config = self.config
        pull = checked.request
        clear_content(request)
        hold_ms = pull.suspend_ms if config.long_polling_enable else config.short_polling_ms
        version = self._records.version
        held = HeldPull(request=request, processor=self, checked=checked, version=version)
        held.poll = self._long_polls.hold(
            self._slot(pull), checked.subscription, request.peer, hold_ms, holder=held
        )
        if held.poll is None:
            return self._response(checked, outcome)
        if checked.more:
            self._long_polls.resume_when_confirmed([held.poll])
        return held

    def resume(self, held: HeldPull, poll: LongPoll, reason: ResumeReason) -> None:
        """Continue a pull whose long poll is released."""
        try:
            outcome = self._resumed(held, poll, reason)
        except Exception as error:
            held.finish(error)
            return
        if held.poll is None:
            held.finish(outcome)

    def release(self, poll: LongPoll) -> None:
        """Release the long poll of a cancelled pull."""
        self._long_polls.release(poll)

    def _resumed(self, held: HeldPull, poll: LongPoll, reason: ResumeReason) -> Response | None:
        """Return the response; None: none is sent, or `held` has another long poll."""
        checked, pull = held.checked, held.checked.request
        if reason is ResumeReason.DROPPED:
            return None
        if held.version != self._records.version:  # the access of the next pull is checked
            return self._response(checked, PullOutcome(RETRY, ACCOUNTS_CHANGED, pull.offset))
        try:
            checked.group, checked.topic = self._readable(held.request, pull, resumed=True)
        except Forbidden as refusal:
            return refusal.response()
        outcome = self._read(checked)
        self._offsets.commit_pull(pull.group, pull.topic, pull.queue_id, outcome.next_offset)
        if reason is ResumeReason.ARRIVED:
            held.poll = self._hold_again(poll, checked, outcome)
        return self._response(checked, outcome) if held.poll is None else None

    def _hold_again(
        self, poll: LongPoll, checked: CheckedPull, outcome: PullOutcome
    ) -> LongPoll | None:
        """Hold a pull again if its filter matched no new message.

        Returns:
            Long poll; None: respond now.
        """
        unmatched = outcome.status == NO_MATCH and outcome.next_offset >= checked.end
        if checked.subscription.filter is None or not unmatched:
            return None
        checked.request.offset = outcome.next_offset
        again = self._long_polls.hold_again(poll)
        if again is not None and checked.more:
            self._long_polls.resume_when_confirmed([again])
        return again

    def _slot(self, pull: PullRequest) -> int:
        table = self._store.topics
        return table.slot(table.add(pull.topic), pull.queue_id, create=True)

    # --- checks, in Apache's order

    def _check(self, request: Request) -> CheckedPull:
        pull = parse_pull(request)
        group, topic = self._readable(request, pull)
        subscription = self._subscriptions.of_pull(request, pull, group)
        if not subscription.is_tag and not self.config.property_filter_enable:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {subscription.kind}; "
                "set enablePropertyFilter=true",
            )
        return CheckedPull(pull, group, topic, subscription)

    def _readable(
        self, request: Request, pull: PullRequest, *, resumed: bool = False
    ) -> tuple[GroupConfig, TopicConfig]:
        """Return the group and the topic of a pull, if the group may read the queue now.

        Args:
            resumed: Whether the same pull was readable before its long poll.
        Raises:
            RequestError: It may not, or one of them does not exist.
        """
        if not self.config.permission & PERM_READ:
            raise Forbidden(FORBIDDEN_BROKER, "the broker has no permission to read")
        if self._retries is not None and pull.topic.startswith(RETRY_PREFIX):
            own = pull.topic.removeprefix(RETRY_PREFIX), ""
            self._retries.check(request, pull.topic, own)
        return self._group(pull.group), self._topic(pull, resumed=resumed)

    def _group(self, name: str) -> GroupConfig:
        group = self._groups.find_or_create(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist; create it or set "
                "autoCreateSubscriptionGroup=true",
            )
        if not group.consume_enable:
            raise Forbidden(FORBIDDEN_GROUP, f"subscription group no permission, {name}")
        return group

    def _topic(self, pull: PullRequest, *, resumed: bool) -> TopicConfig:
        topic = self._topics.find(pull.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{pull.topic}] not exist, apply first please",
            )
        is_open = resumed or may_read(pull.topic)  # this never changes
        if not topic.perm & PERM_READ or not is_open:
            raise Forbidden(FORBIDDEN_TOPIC, f"the topic[{pull.topic}] has no permission to read")
        if not 0 <= pull.queue_id < topic.read_queues:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{pull.queue_id}] is illegal, topic:[{pull.topic}] "
                f"readQueueNums:[{topic.read_queues}] group:[{pull.group}]",
            )
        return topic

    # --- reading

    def _read(self, checked: CheckedPull) -> PullOutcome:
        pull = checked.request
        first, end, queue_end = self._read_bounds(checked)
        reset = self._offsets.take_reset(pull.group, pull.topic, pull.queue_id)
        if reset is not None and reset != pull.offset:
            return PullOutcome(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", reset)
        decided = outcome_of_offset(pull.offset, first, end, queue_end=queue_end)
        if decided is not None:
            return decided
        limits = self._limits()
        expression = checked.subscription.filter
        if expression is None:
            count = units_to_read(pull, checked.subscription, limits)
        else:
            count = units_evaluated(expression, compiled=self._compiled())
        count = min(count, end - pull.offset)
        units = self._store.units(pull.topic, pull.queue_id, pull.offset, count)
        if units.size == 0:
            return PullOutcome(ResponseCode.PULL_NOT_FOUND, "OFFSET_FOUND_NULL", pull.offset)
        passing = None
        if expression is not None:
            position = (pull.topic, pull.queue_id, pull.offset)
            record_filter = RecordFilter(
                self._store, position, expression, compiled=self._compiled()
            )
            passing = record_filter.passing(units, pull.count_max)
            units = units[: passing.size]
        outcome = select_units(
            units,
            pull,
            checked.subscription,
            limits,
            log_min=self._store.min_offset,
            log_max=self._store.max_offset,
            passing=passing,
        )
        returned = 0 if outcome.units is None else outcome.units.size
        passed = outcome.next_offset - pull.offset
        if passed > returned and self._repaired(checked, units[:passed]):
            return self._read(checked)
        return outcome

    def _read_bounds(self, checked: CheckedPull) -> tuple[int, int, int]:
        pull = checked.request
        bounds = self._store.consumer_bounds(pull.topic, pull.queue_id)
        checked.first, checked.end, queue_end = bounds
        checked.more = checked.end < queue_end
        return bounds

    def _repaired(self, checked: CheckedPull, units: npt.NDArray[np.void]) -> bool:
        """Repair units that point to removed records, or whose tags codes the disk has changed.

        Returns:
            Whether units were repaired.
        """
        pull = checked.request
        compare = self._store.repair.compare
        if checked.subscription.skips_by_code and compare(
            pull.topic, pull.queue_id, units, pull.offset
        ):
            return True
        removed = np.flatnonzero(units["phys_offset"] < self._store.min_offset)
        return any(
            self._store.repair.repaired(pull.topic, pull.queue_id, pull.offset + index)
            for index in removed.tolist()
            if units[index]["size"] != BLANK_UNIT_SIZE
        )

    def _response(self, checked: CheckedPull, outcome: PullOutcome) -> Response:
        body, outcome = self._bodies(checked, outcome)
        pull = checked.request
        if outcome.code == ResponseCode.SUCCESS:
            assert outcome.units is not None
            self._stats.messages_got(pull.topic, pull.group, count=outcome.units.size, body=body)
        else:
            self._stats.got_nothing()
        return Response(
            outcome.code,
            outcome.status,
            {
                "suggestWhichBrokerId": "0",
                "nextBeginOffset": str(outcome.next_offset),
                "minOffset": str(checked.first),
                "maxOffset": str(checked.end),
                "topicSysFlag": str(checked.topic.sys_flag),
                "groupSysFlag": str(checked.group.sys_flag),
            },
            body,
        )

    def _bodies(self, checked: CheckedPull, outcome: PullOutcome) -> tuple[bytes, PullOutcome]:
        """Return the bytes of the selected records, and the outcome without unreadable ones."""
        pull = checked.request
        for _ in range(UNREADABLE_MAX):
            units = outcome.units
            if units is None:
                return b"", outcome
            if units.size == 0:
                break
            try:
                position = pull.topic, pull.queue_id, pull.offset
                return self._store.gather(*position, units), outcome
            except UnitsRewritten:
                outcome = self._read(checked)
            except RecordUnreadable as fault:
                readable = self._store.sound_units(exclude_unit(units, fault.phys_offset))
                outcome = replace(outcome, units=readable)
        return b"", PullOutcome(RETRY, "MESSAGE_WAS_REMOVING", outcome.next_offset)


def clear_content(request: Request) -> None:
    """Clear all fields but the account, to save memory while the request is held."""
    account = account_of(request)
    request.fields = {ACCESS_KEY: account} if account else {}
    request.body, request.remark, request.language = b"", None, ""


def parse_pull(request: Request) -> PullRequest:
    """Parse the header of code 11 or 361.

    Raises:
        RequestError: A mandatory field is missing or not a number (SYSTEM_ERROR).
    """
    return PullRequest(
        group=fields.text(request, "consumerGroup"),
        topic=fields.text(request, "topic"),
        queue_id=fields.integer(request, "queueId"),
        offset=fields.long(request, "queueOffset"),
        count_max=max(fields.integer(request, "maxMsgNums"), 1),
        sys_flag=fields.integer(request, "sysFlag"),
        commit_offset=fields.long(request, "commitOffset"),
        suspend_ms=fields.long(request, "suspendTimeoutMillis"),
        version=fields.long(request, "subVersion"),
        bytes_max=max(fields.integer(request, "maxMsgBytes", fields.INT_MAX), 1),
    )


__all__ = ["FOUND", "Forbidden", "PullProcessor", "parse_pull"]
