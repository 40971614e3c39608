"""Pulls (11, 361), with long polling and commit of offsets. PullMessageProcessor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from delivery.plugin import Request, Response
from duemq.configuration.config import BrokerConfig
from duemq.filters import FilterError
from duemq.metrics.put_get_stats import BrokerStats
from duemq.net import fields
from duemq.net.codes import RequestCode, ResponseCode
from duemq.net.dispatcher import Deferred, Handler
from duemq.ports import PERM_READ, Groups, GroupView, Offsets, Topics, TopicView
from duemq.pull.held_pulls import Held, HeldPulls, Wake
from duemq.pull.hidden_units import HiddenUnits
from duemq.pull.pull_plan import (
    BLANK_UNIT_SIZE,
    FOUND,
    NO_MATCH,
    Outcome,
    PullLimits,
    PullRequest,
    StoreLimits,
    choose,
    outcome_of_offset,
    units_wanted,
    without,
)
from duemq.pull.record_filter import RecordFilter, units_evaluated
from duemq.registry.clients import ClientTable
from duemq.registry.internal_topics import Access, client_access
from duemq.registry.subscriptions import ALL, TAG, ExpressionError, Subscription, parse_expression
from duemq.replication.config import ReplicationConfig
from message_store.errors import RecordUnreadable, RequestError, UnitsRewritten

if TYPE_CHECKING:
    from message_store.store import MessageStore

RETRY = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
CHANGED = "the accounts have changed: pull again"
FROM_MASTER = "this replica answers no pulls (slaveReadEnable=false): pull from the master"
UNREADABLE_MAX = 16  # damaged records that one pull steps over
WANTING_ALL_MAX = 1_024  # subscriptions of pulls that are kept
FORBIDDEN_BROKER, FORBIDDEN_GROUP, FORBIDDEN_TOPIC, FORBIDDEN_BROADCAST = 1, 2, 3, 4


class Forbidden(RequestError):
    """A pull that is refused for good; the answer names which of five checks failed."""

    def __init__(self, gate: int, remark: str) -> None:
        self.gate = gate
        super().__init__(ResponseCode.NO_PERMISSION, remark)


@dataclass(slots=True)
class Admitted:
    """A pull that passed every check."""

    request: PullRequest
    group: GroupView
    topic: TopicView
    subscription: Subscription
    more: bool = False  # whether its queue has messages that cannot be read yet
    end: int = 0  # queue offset after the last message that could be read


class PullProcessor:
    """Answers 11 and 361.

    Args:
        config: gives the configuration in force.
        access_version: Returns a number that changes with the accounts.
        replication: gives the role; a replica leaves pulls to the master, unless slaveReadEnable.
        compiled: Returns whether the kernels of filters may be used.
        held: Held pulls; its `on_append` must be a dispatcher of the store.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        clients: ClientTable,
        held: HeldPulls,
        stats: BrokerStats,
        config: Callable[[], BrokerConfig],
        limits: Callable[[], PullLimits] | None = None,
        replication: Callable[[], ReplicationConfig] = ReplicationConfig,
        access_version: Callable[[], int] = lambda: 0,
        compiled: Callable[[], bool] = lambda: True,
    ) -> None:
        self._compiled = compiled
        self._access_version = access_version
        self._replication = replication
        self._store, self._topics, self._groups = store, topics, groups
        self._hidden = HiddenUnits(store)
        self._offsets, self._clients, self._held = offsets, clients, held
        self._stats, self._config = stats, config
        self._limits = limits or StoreLimits(store)
        self._wanting_all: dict[tuple[str, int], Subscription] = {}

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, request: Request) -> Response | Deferred:
        """Respond at once, on a message, or at the deadline; None if the client disconnected."""
        try:
            admitted = self._admit(request)
        except Forbidden as refusal:
            return Response(refusal.code, refusal.remark, {"forbiddenType": str(refusal.gate)})
        role = self._replication()
        if role.is_replica and not role.slave_read_enable:
            return self._answer(admitted, Outcome(RETRY, FROM_MASTER, admitted.request.offset))
        outcome = self._read(admitted)
        wanted = admitted.request
        self._offsets.commit_pull(wanted.group, wanted.topic, wanted.queue_id, outcome.next_offset)
        commits = wanted.has(PullRequest.COMMIT) and wanted.commit_offset >= 0
        if commits and not role.is_replica:
            self._offsets.commit(wanted.group, wanted.topic, wanted.queue_id, wanted.commit_offset)
        if outcome.code != ResponseCode.PULL_NOT_FOUND or not wanted.has(PullRequest.SUSPEND):
            return self._answer(admitted, outcome)
        return self._hold(request, admitted, outcome)

    def _hold(self, request: Request, admitted: Admitted, outcome: Outcome) -> Response | Deferred:
        config = self._config()
        wanted = admitted.request
        forget_content(request)
        hold_ms = wanted.suspend_ms if config.long_polling_enable else config.short_polling_ms
        held = self._held.hold(self._slot(wanted), admitted.subscription, request.peer, hold_ms)
        if held is None:
            return self._answer(admitted, outcome)
        if admitted.more:
            self._held.wake_when_confirmed([held])
        return self._wait(held, admitted)

    async def _wait(self, held: Held, admitted: Admitted) -> Response | None:
        version, wanted = self._access_version(), admitted.request
        while True:
            try:
                why = await held.woken
            finally:
                self._held.release(held)
            if why is Wake.DROPPED:
                return None
            if version != self._access_version():  # the next pull of the client is checked again
                return self._answer(admitted, Outcome(RETRY, CHANGED, wanted.offset))
            outcome = self._read(admitted)
            self._offsets.commit_pull(
                wanted.group, wanted.topic, wanted.queue_id, outcome.next_offset
            )
            again = self._hold_again(held, admitted, outcome) if why is Wake.ARRIVED else None
            if again is None:
                return self._answer(admitted, outcome)
            held = again

    def _hold_again(self, held: Held, admitted: Admitted, outcome: Outcome) -> Held | None:
        """Hold a pull on if its filter lets none of the new messages pass; None: answer it."""
        unmatched = outcome.status == NO_MATCH and outcome.next_offset >= admitted.end
        if admitted.subscription.filter is None or not unmatched:
            return None
        admitted.request.offset = outcome.next_offset
        again = self._held.hold_on(held)
        if again is not None and admitted.more:
            self._held.wake_when_confirmed([again])
        return again

    def _slot(self, wanted: PullRequest) -> int:
        table = self._store.topics
        return table.slot(table.add(wanted.topic), wanted.queue_id, create=True)

    # --- checks, in Apache's order

    def _admit(self, request: Request) -> Admitted:
        wanted = parse_pull(request)
        if not self._config().permission & PERM_READ:
            raise Forbidden(FORBIDDEN_BROKER, "the broker has no permission to read")
        group = self._group(wanted.group)
        topic = self._topic(wanted)
        if wanted.has(PullRequest.SUBSCRIPTION):
            subscription = self._given_subscription(request, wanted)
        else:
            subscription = self._known_subscription(wanted, group)
        if not subscription.is_tag and not self._config().property_filter_enable:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {subscription.kind}; "
                "set enablePropertyFilter=true",
            )
        return Admitted(wanted, group, topic, subscription)

    def _group(self, name: str) -> GroupView:
        group = self._groups.find(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist; create it or set "
                "autoCreateSubscriptionGroup=true",
            )
        if not group.consume_enable:
            raise Forbidden(FORBIDDEN_GROUP, f"subscription group no permission, {name}")
        return group

    def _topic(self, wanted: PullRequest) -> TopicView:
        topic = self._topics.find(wanted.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{wanted.topic}] not exist, apply first please"
            )
        if not topic.perm & PERM_READ or not client_access(wanted.topic) & Access.READ:
            raise Forbidden(FORBIDDEN_TOPIC, f"the topic[{wanted.topic}] has no permission to read")
        if not 0 <= wanted.queue_id < topic.read_queues:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{wanted.queue_id}] is illegal, topic:[{wanted.topic}] "
                f"readQueueNums:[{topic.read_queues}] group:[{wanted.group}]",
            )
        return topic

    def _known_subscription(self, wanted: PullRequest, group: GroupView) -> Subscription:
        members = self._clients.consumer_group(wanted.group)
        if members is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist, group: {wanted.group}",
            )
        if members.broadcasting and not group.broadcast_enable:
            raise Forbidden(
                FORBIDDEN_BROADCAST, f"group {wanted.group} may not consume by broadcasting"
            )
        subscription = members.subscriptions.get(wanted.topic)
        if subscription is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist, group: {wanted.group} "
                f"topic: {wanted.topic}",
            )
        if subscription.version < wanted.version:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return subscription if subscription.is_tag else self._registered(wanted, subscription)

    def _registered(self, wanted: PullRequest, subscription: Subscription) -> Subscription:
        """Return the subscription with the filter that a heartbeat has registered."""
        found = self._clients.filters.find(wanted.topic, wanted.group)
        if found is None or found.compiled is None:
            raise RequestError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist! Your expression may be wrong!",
            )
        if found.version < wanted.version:
            raise RequestError(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest",
            )
        return replace(subscription, filter=found.compiled)

    def _given_subscription(self, request: Request, wanted: PullRequest) -> Subscription:
        expression, kind = request.fields.get("subscription"), request.fields.get("expressionType")
        wants_all = expression == ALL and kind in (None, TAG)
        known = self._wanting_all.get((wanted.topic, wanted.version)) if wants_all else None
        if known is not None:
            return known
        try:
            parsed = parse_expression(wanted.topic, expression, kind, wanted.version)
            if not parsed.is_tag:
                compiled = self._clients.filters.compile(parsed.kind, parsed.expression)
                parsed = replace(parsed, filter=compiled)
        except (ExpressionError, FilterError) as fault:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {fault}",
            ) from fault
        if wants_all:
            if len(self._wanting_all) >= WANTING_ALL_MAX:
                self._wanting_all.clear()
            self._wanting_all[wanted.topic, wanted.version] = parsed
        return parsed

    # --- reading

    def _read(self, admitted: Admitted) -> Outcome:
        wanted = admitted.request
        reset = self._offsets.take_reset(wanted.group, wanted.topic, wanted.queue_id)
        if reset is not None:
            return Outcome(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", reset)
        first, end = self._store.readable_bounds(wanted.topic, wanted.queue_id)
        _, queue_end = self._store.queue_bounds(wanted.topic, wanted.queue_id)
        admitted.more, admitted.end = end < queue_end, end
        decided = outcome_of_offset(wanted.offset, first, end, queue_end=queue_end)
        if decided is not None:
            return decided
        limits = self._limits()
        expression = admitted.subscription.filter
        if expression is None:
            count = units_wanted(wanted, admitted.subscription, limits)
        else:
            count = units_evaluated(expression, compiled=self._compiled())
        count = min(count, end - wanted.offset)
        units = self._store.units(wanted.topic, wanted.queue_id, wanted.offset, count)
        if units.size == 0:
            return Outcome(ResponseCode.PULL_NOT_FOUND, "OFFSET_FOUND_NULL", wanted.offset)
        passing = None
        if expression is not None:
            place = (wanted.topic, wanted.queue_id, wanted.offset)
            record_filter = RecordFilter(self._store, place, expression, compiled=self._compiled())
            passing = record_filter.passing(units, wanted.count_max)
            units = units[: passing.size]
        outcome = choose(
            units,
            wanted,
            admitted.subscription,
            limits,
            log_min=self._store.min_offset,
            log_max=self._store.max_offset,
            passing=passing,
        )
        returned = 0 if outcome.units is None else outcome.units.size
        passed = outcome.next_offset - wanted.offset
        if passed > returned and self._repaired(admitted, units[:passed]):
            return self._read(admitted)
        return outcome

    def _repaired(self, admitted: Admitted, units: npt.NDArray[Any]) -> bool:
        """Repair units that name removed records or have wrong tags codes; return whether."""
        wanted = admitted.request
        place = wanted.topic, wanted.queue_id, wanted.offset
        if self._hidden.repaired(place, units, admitted.subscription):
            return True
        removed = np.flatnonzero(units["phys_offset"] < self._store.min_offset)
        return any(
            self._store.repair.repaired(wanted.topic, wanted.queue_id, wanted.offset + at)
            for at in removed.tolist()
            if units[at]["size"] != BLANK_UNIT_SIZE
        )

    def _answer(self, admitted: Admitted, outcome: Outcome) -> Response:
        body, outcome = self._bodies(admitted, outcome)
        wanted = admitted.request
        low, high = self._store.readable_bounds(wanted.topic, wanted.queue_id)
        if outcome.code == 0:
            assert outcome.units is not None
            self._stats.messages_got(
                wanted.topic, wanted.group, count=outcome.units.size, size=len(body)
            )
        else:
            self._stats.got_nothing()
        return Response(
            outcome.code,
            outcome.status,
            {
                "suggestWhichBrokerId": "0",
                "nextBeginOffset": str(outcome.next_offset),
                "minOffset": str(low),
                "maxOffset": str(high),
                "topicSysFlag": str(admitted.topic.sys_flag),
                "groupSysFlag": str(admitted.group.sys_flag),
            },
            body,
        )

    def _bodies(self, admitted: Admitted, outcome: Outcome) -> tuple[bytes, Outcome]:
        """Return the bytes of the chosen records, without unreadable ones."""
        wanted = admitted.request
        for _ in range(UNREADABLE_MAX):
            units = outcome.units
            if units is None:
                return b"", outcome
            if units.size == 0:
                break
            try:
                place = wanted.topic, wanted.queue_id, wanted.offset
                return self._store.gather(*place, units), outcome
            except UnitsRewritten:
                outcome = self._read(admitted)
            except RecordUnreadable as fault:
                left = self._store.sound_units(without(units, fault.phys_offset))
                outcome = replace(outcome, units=left)
        return b"", Outcome(RETRY, "MESSAGE_WAS_REMOVING", outcome.next_offset)


def forget_content(request: Request) -> None:
    """Drop what only `_admit` reads: thousands of requests may be held for minutes."""
    request.body, request.fields, request.remark, request.language = b"", {}, None, ""


def parse_pull(request: Request) -> PullRequest:
    """Return the header of 11 or 361.

    Raises:
        RequestError: With SYSTEM_ERROR when a mandatory field is missing or no number.
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
