"""Request codes that a broker or a name server handles: one row per code, by module of the handler.

A row has the permission of accounts, the permission of ACL 1.0, whether the handler waits for
kernels, and whether a replica refers to its master. A plugin's code without a row requires an
administrator.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec import Struct

from duemq.auth import accesses
from duemq.auth import plain_permissions as plain
from duemq.auth.accesses import LIST_SEPARATOR, NamedField, Permission, Rule
from duemq.auth.model import Action, ResourceType
from duemq.auth.plain_permissions import PlainPermission
from duemq.auth.plain_rules import PUB, SUB
from duemq_common.codes import RequestCode

CHANGES: Final = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE})


class RequestRow(Struct, frozen=True):
    """Row of a request code.

    Attributes:
        code: Code; its name is Apache's, or DueMQ's from 9,000 on.
        permission: Permission that an account needs; None: every account has it.
        plain: Permission by ACL 1.0; None: every account has it.
        always: Whether the permission is checked for requests without header fields too; Apache
            checks none of them.
        is_client: Whether producers and consumers send the request: the audit log omits it.
        is_between_members: Whether brokers and controllers of a group send the request. Its handler
            only reads, or sends a request to the controller.
        needs_kernels: Whether the handler calls kernels that sends and pulls do not need. It waits
            until all kernels are compiled.
        only_master: Whether a replica refers to its master: it does not know which messages are
            pending.
    """

    code: int
    permission: Permission | None
    plain: PlainPermission | None = None
    always: bool = False
    is_client: bool = False
    is_between_members: bool = False
    needs_kernels: bool = False
    only_master: bool = False

    @property
    def changes_resources(self) -> bool:
        """Whether the request changes resources of other clients.

        Decisions do not: they apply to an application's messages.
        """
        permission = self.permission
        return isinstance(permission, Rule) and permission.action in CHANGES


_client = partial(RequestRow, is_client=True)


def _named(
    code: int,
    action: Action,
    *fields: NamedField,
    plain: PlainPermission | None = None,
    **flags: bool,
) -> RequestRow:
    return RequestRow(code, Rule(action, fields), plain, **flags)


def _on_cluster(
    code: int,
    action: Action,
    *fields: NamedField,
    plain: PlainPermission | None = None,
    **flags: bool,
) -> RequestRow:
    return RequestRow(code, Rule(action, fields, cluster=True), plain, **flags)


def _own(
    code: int,
    permission: Action | Permission,
    plain: PlainPermission | None = None,
    **flags: bool,
) -> RequestRow:
    """Return the row of a code that Apache opens to every account; an action is on the cluster."""
    if isinstance(permission, Action):
        permission = Rule(permission, cluster=True)
    return RequestRow(code, permission, plain, always=True, **flags)


ADMIN: Final = plain.administrator
TOPIC: Final = NamedField(ResourceType.TOPIC, "topic")
GROUP: Final = NamedField(ResourceType.GROUP, "group")
CONSUMER: Final = NamedField(ResourceType.GROUP, "consumerGroup")
CLUSTER: Final = NamedField(ResourceType.CLUSTER, "clusterName")
TOPIC_LIST: Final = NamedField(ResourceType.TOPIC, "topicList", LIST_SEPARATOR)
DELETED_GROUP: Final = NamedField(ResourceType.GROUP, "groupName")
CLONED_GROUP: Final = NamedField(ResourceType.GROUP, "destGroup")
FILTER_GROUPS: Final = NamedField(ResourceType.GROUP, "filterGroups", ",")
COMPARED_GROUP: Final = NamedField(ResourceType.GROUP, "compareGroup")
REPLY_TOPIC: Final = NamedField(ResourceType.TOPIC, "b")

ROWS_BY_MODULE: Final[Mapping[str, tuple[RequestRow, ...]]] = {
    "duemq.send.ingest": (
        _client(
            RequestCode.SEND_MESSAGE, accesses.send("topic", "group"), plain.send("topic", "group")
        ),
        _client(RequestCode.SEND_MESSAGE_V2, accesses.send("b", "a"), plain.send("b", "a")),
        _client(RequestCode.SEND_BATCH_MESSAGE, accesses.send("b", "a"), plain.send("b", "a")),
    ),
    "duemq.send.send_back": (
        _client(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            accesses.on_group("group", Action.SUB),
            plain.on_group("group"),
        ),
    ),
    "duemq.send.reply": (
        _own(RequestCode.SEND_REPLY_MESSAGE, Rule(Action.PUB, (TOPIC,)), plain.on_topic(PUB)),
        _own(
            RequestCode.SEND_REPLY_MESSAGE_V2,
            Rule(Action.PUB, (REPLY_TOPIC,)),
            plain.on_topic(PUB, "b"),
        ),
    ),
    "duemq.transactions.transactions": (
        _client(
            RequestCode.END_TRANSACTION,
            accesses.end_transaction,
            plain.on_topic(PUB),
            needs_kernels=True,
        ),
        _named(RequestCode.RESUME_CHECK_HALF_MESSAGE, Action.UPDATE, TOPIC),
    ),
    "duemq.messages.queries": (
        _client(
            RequestCode.QUERY_MESSAGE,
            accesses.on_topic(Action.SUB, Action.GET),
            plain.on_topic(SUB),
            needs_kernels=True,
        ),
        _named(RequestCode.VIEW_MESSAGE_BY_ID, Action.GET, TOPIC, needs_kernels=True),
        _named(RequestCode.QUERY_CONSUME_QUEUE, Action.GET, TOPIC, CONSUMER),
    ),
    "duemq.messages.copies": (
        _own(
            RequestCode.FIND_COPIES,
            accesses.on_topic(Action.SUB, Action.GET),
            plain.on_topic(SUB),
            needs_kernels=True,
            only_master=True,
        ),
    ),
    "duemq.messages.recall": (
        _client(
            RequestCode.RECALL_MESSAGE,
            accesses.on_topic(Action.PUB),
            plain.on_topic(PUB),
            needs_kernels=True,
            only_master=True,
        ),
    ),
    "duemq.messages.history_request": (
        _own(RequestCode.FIND_MESSAGE, Action.GET, ADMIN, only_master=True),
        _own(
            RequestCode.FIND_MESSAGE_OF_TOPIC,
            accesses.on_topic(Action.SUB, Action.GET),
            plain.on_topic(SUB),
            only_master=True,
        ),
    ),
    "duemq.messages.decide": (
        _own(
            RequestCode.CANCEL_PENDING, accesses.decide, ADMIN, needs_kernels=True, only_master=True
        ),
        _own(
            RequestCode.MOVE_PENDING, accesses.decide, ADMIN, needs_kernels=True, only_master=True
        ),
        _own(
            RequestCode.FIRE_PENDING, accesses.decide, ADMIN, needs_kernels=True, only_master=True
        ),
    ),
    "duemq.messages.pending_hits": (
        _own(
            RequestCode.SEARCH_PENDING,
            Rule(Action.GET, (TOPIC,), cluster=True),
            ADMIN,
            needs_kernels=True,
            only_master=True,
        ),
        _own(
            RequestCode.DECIDE_HITS,
            accesses.decide_hits,
            ADMIN,
            needs_kernels=True,
            only_master=True,
        ),
    ),
    "duemq.messages.pending_pages": (
        _own(RequestCode.READ_PENDING, Action.GET, ADMIN, needs_kernels=True),
    ),
    "duemq.pull.pull": (
        _client(RequestCode.PULL_MESSAGE, accesses.consume(Action.SUB), plain.pull),
        _client(RequestCode.LITE_PULL_MESSAGE, accesses.consume(Action.SUB), plain.pull),
    ),
    "duemq.pull.offset_requests": (
        _client(RequestCode.QUERY_CONSUMER_OFFSET, accesses.consume(Action.SUB, Action.GET)),
        _client(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            accesses.consume(Action.SUB, Action.UPDATE),
            plain.pull,
        ),
        _named(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, Action.GET, TOPIC, needs_kernels=True),
        _named(RequestCode.GET_MAX_OFFSET, Action.GET, TOPIC),
        _named(RequestCode.GET_MIN_OFFSET, Action.GET, TOPIC),
        _named(RequestCode.GET_EARLIEST_MSG_STORETIME, Action.GET, TOPIC),
    ),
    "duemq.pull.queue_locks": (
        _client(RequestCode.LOCK_BATCH_MQ, accesses.lock, plain.lock),
        _client(RequestCode.UNLOCK_BATCH_MQ, accesses.lock, plain.lock),
    ),
    "duemq.pull.reset_offsets": (
        _named(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            Action.UPDATE,
            GROUP,
            TOPIC,
            plain=plain.progress("group"),
        ),
    ),
    "duemq.pop.pop": (
        _named(RequestCode.POP_MESSAGE, Action.SUB, CONSUMER, TOPIC, plain=plain.pull),
    ),
    "duemq.pop.acks": (
        _client(RequestCode.ACK_MESSAGE, accesses.acknowledge, plain.acknowledge),
        _client(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, accesses.acknowledge, plain.acknowledge),
        _own(RequestCode.BATCH_ACK_MESSAGE, accesses.acknowledge_batch, plain.acknowledge_batch),
    ),
    "duemq.pop.peeks": (
        _named(RequestCode.PEEK_MESSAGE, Action.SUB, CONSUMER, TOPIC, plain=plain.pull),
        _named(RequestCode.NOTIFICATION, Action.SUB, CONSUMER, TOPIC, plain=plain.pull),
        _named(RequestCode.POLLING_INFO, Action.GET, TOPIC, CONSUMER),
    ),
    "duemq.pop.assignment": (
        _own(RequestCode.QUERY_ASSIGNMENT, accesses.assign),
        _own(RequestCode.SET_MESSAGE_REQUEST_MODE, Action.UPDATE, ADMIN),
        _own(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, Action.LIST),
    ),
    "duemq.registry.client_requests": (
        _client(RequestCode.HEART_BEAT, accesses.heartbeat, plain.heartbeat),
        _client(
            RequestCode.UNREGISTER_CLIENT, accesses.unregister, plain.on_group("consumerGroup")
        ),
        _client(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            accesses.on_group("consumerGroup", Action.SUB, Action.GET),
            plain.on_group("consumerGroup"),
        ),
        RequestRow(RequestCode.CHECK_CLIENT_CONFIG, None),  # no side effects, no data
    ),
    "duemq.admin.topic_admin": (
        _named(RequestCode.UPDATE_AND_CREATE_TOPIC, Action.CREATE, TOPIC, plain=ADMIN),
        _own(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, Action.CREATE, ADMIN),
        _named(RequestCode.DELETE_TOPIC_IN_BROKER, Action.DELETE, TOPIC, plain=ADMIN),
        _own(RequestCode.DELETE_TOPIC_IN_BROKER_LIST, Action.DELETE, ADMIN),
        _own(RequestCode.GET_ALL_TOPIC_CONFIG, Action.LIST),
        _named(RequestCode.GET_TOPIC_CONFIG, Action.GET, TOPIC),
        _named(RequestCode.GET_TOPIC_STATS_INFO, Action.GET, TOPIC),
        _named(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, Action.GET, TOPIC),
        _own(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Action.LIST),
    ),
    "duemq.admin.group_admin": (
        _own(RequestCode.GET_ALL_CONSUMER_OFFSET, Action.GET),
        _own(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Action.CREATE, ADMIN),
        _own(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, Action.CREATE, ADMIN),
        _own(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Action.LIST),
        _named(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, Action.GET, GROUP),
        _named(RequestCode.DELETE_SUBSCRIPTIONGROUP, Action.DELETE, DELETED_GROUP, plain=ADMIN),
        _own(RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST, Action.DELETE, ADMIN),
        _named(RequestCode.GET_CONSUME_STATS, Action.GET, CONSUMER, TOPIC, TOPIC_LIST),
        _named(RequestCode.QUERY_CONSUME_TIME_SPAN, Action.GET, TOPIC, GROUP),
        _named(
            RequestCode.CLONE_GROUP_OFFSET,
            Action.UPDATE,
            CLONED_GROUP,
            TOPIC,
            plain=plain.progress("destGroup"),
        ),
        _named(RequestCode.QUERY_TOPICS_BY_CONSUMER, Action.GET, GROUP),
        _named(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, Action.GET, TOPIC, GROUP),
    ),
    "duemq.admin.consume_report": (
        _on_cluster(RequestCode.GET_BROKER_CONSUME_STATS, Action.GET),
        _named(
            RequestCode.QUERY_CORRECTION_OFFSET, Action.GET, FILTER_GROUPS, COMPARED_GROUP, TOPIC
        ),
    ),
    "duemq.admin.client_admin": (
        _named(RequestCode.GET_CONSUMER_CONNECTION_LIST, Action.GET, CONSUMER),
        _on_cluster(RequestCode.GET_PRODUCER_CONNECTION_LIST, Action.GET),
        _on_cluster(RequestCode.GET_ALL_PRODUCER_INFO, Action.GET),
        _named(RequestCode.GET_CONSUMER_RUNNING_INFO, Action.GET, CONSUMER),
        _named(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            Action.SUB,
            CONSUMER,
            TOPIC,
            plain=plain.progress("consumerGroup"),
        ),
        _named(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, Action.GET, TOPIC, GROUP),
    ),
    "duemq.admin.runtime_info": (
        _own(RequestCode.GET_BROKER_RUNTIME_INFO, Action.GET),
        _on_cluster(RequestCode.VIEW_BROKER_STATS_DATA, Action.GET),
        _own(RequestCode.GET_BROKER_HA_STATUS, Action.GET),
        _own(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, Action.UPDATE, ADMIN),
        _own(RequestCode.CLEAN_UNUSED_TOPIC, Action.UPDATE, ADMIN),
        _own(RequestCode.DELETE_EXPIRED_COMMITLOG, Action.UPDATE, ADMIN),
    ),
    "duemq.admin.config_admin": (
        _own(RequestCode.UPDATE_BROKER_CONFIG, Action.UPDATE, ADMIN),
        _own(RequestCode.GET_BROKER_CONFIG, Action.GET),
    ),
    "duemq.admin.views": (_own(RequestCode.GET_VIEW, Action.GET, ADMIN),),
    "duemq.admin.absent_features": (
        _on_cluster(RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, Action.GET),
        _on_cluster(RequestCode.RESET_MASTER_FLUSH_OFFSET, Action.UPDATE),
        _own(RequestCode.POP_ROLLBACK, Action.UPDATE, ADMIN),
        _own(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, Action.UPDATE, ADMIN),
        _named(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, Action.UPDATE, GROUP, TOPIC),
        _named(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, Action.GET, TOPIC),
        _own(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, Action.UPDATE, ADMIN),
        _own(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, Action.UPDATE, ADMIN),
        _own(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, Action.GET),
        _own(RequestCode.SET_COMMITLOG_READ_MODE, Action.UPDATE, ADMIN),
        _own(RequestCode.SWITCH_TIMER_ENGINE, Action.UPDATE, ADMIN),
        _own(RequestCode.POP_LITE_MESSAGE, Action.UPDATE, ADMIN),
        _own(RequestCode.LITE_SUBSCRIPTION_CTL, Action.UPDATE, ADMIN),
        _own(RequestCode.ACK_LITE_MESSAGE, Action.UPDATE, ADMIN),
        _own(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, Action.UPDATE, ADMIN),
        _own(RequestCode.GET_BROKER_LITE_INFO, Action.UPDATE, ADMIN),
        _own(RequestCode.GET_PARENT_TOPIC_INFO, Action.UPDATE, ADMIN),
        _own(RequestCode.GET_LITE_TOPIC_INFO, Action.UPDATE, ADMIN),
        _own(RequestCode.GET_LITE_CLIENT_INFO, Action.UPDATE, ADMIN),
        _own(RequestCode.GET_LITE_GROUP_INFO, Action.UPDATE, ADMIN),
        _own(RequestCode.TRIGGER_LITE_DISPATCH, Action.UPDATE, ADMIN),
    ),
    "duemq.replication.ha_address": (
        _on_cluster(RequestCode.EXCHANGE_BROKER_HA_INFO, Action.UPDATE, is_between_members=True),
    ),
    "duemq.replication.controller.notifications": (
        _own(RequestCode.GET_BROKER_EPOCH_CACHE, Action.GET),
        _on_cluster(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, Action.UPDATE, is_between_members=True),
    ),
    "duemq.auth.account_requests": (
        _on_cluster(RequestCode.AUTH_CREATE_USER, Action.UPDATE),
        _on_cluster(RequestCode.AUTH_UPDATE_USER, Action.UPDATE),
        _on_cluster(RequestCode.AUTH_DELETE_USER, Action.UPDATE),
        _on_cluster(RequestCode.AUTH_GET_USER, Action.GET),
        _on_cluster(RequestCode.AUTH_LIST_USER, Action.GET),
        _on_cluster(RequestCode.AUTH_CREATE_ACL, Action.UPDATE),
        _on_cluster(RequestCode.AUTH_UPDATE_ACL, Action.UPDATE),
        _on_cluster(RequestCode.AUTH_DELETE_ACL, Action.UPDATE),
        _on_cluster(RequestCode.AUTH_GET_ACL, Action.GET),
        _on_cluster(RequestCode.AUTH_LIST_ACL, Action.GET),
    ),
    "duemq.auth.plain_requests": (
        _own(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, Action.UPDATE, ADMIN),
        _own(RequestCode.DELETE_ACL_CONFIG, Action.UPDATE, ADMIN),
        _own(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, Action.UPDATE, ADMIN),
        _own(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, Action.UPDATE, ADMIN),
        _own(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, Action.UPDATE, ADMIN),
    ),
    "duemq.namesrv.processor": (
        _client(RequestCode.GET_ROUTEINFO_BY_TOPIC, accesses.route),
        _own(RequestCode.GET_BROKER_CLUSTER_INFO, Action.GET),
        _on_cluster(RequestCode.REGISTER_BROKER, Action.UPDATE, CLUSTER, plain=ADMIN),
        _on_cluster(RequestCode.UNREGISTER_BROKER, Action.UPDATE, CLUSTER, plain=ADMIN),
        _on_cluster(RequestCode.QUERY_DATA_VERSION, Action.GET, CLUSTER),
        _on_cluster(RequestCode.BROKER_HEARTBEAT, Action.UPDATE, CLUSTER, plain=ADMIN),
        _named(RequestCode.GET_BROKER_MEMBER_GROUP, Action.GET, CLUSTER),
        _own(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Action.LIST),
        _own(RequestCode.GET_TOPICS_BY_CLUSTER, Action.LIST),
        _own(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, Action.LIST),
        _own(RequestCode.GET_UNIT_TOPIC_LIST, Action.LIST),
        _own(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, Action.LIST),
        _own(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, Action.LIST),
        _on_cluster(RequestCode.DELETE_TOPIC_IN_NAMESRV, Action.UPDATE, CLUSTER, plain=ADMIN),
        _on_cluster(RequestCode.REGISTER_TOPIC_IN_NAMESRV, Action.UPDATE, plain=ADMIN),
        _on_cluster(RequestCode.WIPE_WRITE_PERM_OF_BROKER, Action.UPDATE, plain=ADMIN),
        _on_cluster(RequestCode.ADD_WRITE_PERM_OF_BROKER, Action.UPDATE, plain=ADMIN),
        _on_cluster(RequestCode.PUT_KV_CONFIG, Action.UPDATE, plain=ADMIN),
        _on_cluster(RequestCode.GET_KV_CONFIG, Action.GET),
        _on_cluster(RequestCode.DELETE_KV_CONFIG, Action.UPDATE, plain=ADMIN),
        _on_cluster(RequestCode.GET_KVLIST_BY_NAMESPACE, Action.GET),
        _own(RequestCode.UPDATE_NAMESRV_CONFIG, Action.UPDATE, ADMIN),
        _own(RequestCode.GET_NAMESRV_CONFIG, Action.GET),
    ),
    "schedule_service.plugin": (_own(RequestCode.GET_ALL_DELAY_OFFSET, Action.GET),),
    "timer_store.plugin": (
        _own(RequestCode.GET_TIMER_CHECK_POINT, Action.GET),
        _own(RequestCode.GET_TIMER_METRICS, Action.GET),
        _own(RequestCode.COMPACT_TIMERS, Action.UPDATE, ADMIN),
    ),
    "recurring_schedules.plugin": (
        _own(RequestCode.CHANGE_SCHEDULE, Rule(Action.PUB, (TOPIC,)), plain.on_topic(PUB)),
    ),
    "spark_reconciliation.plugin": (_own(RequestCode.START_AUDIT, Action.UPDATE, ADMIN),),
    "spark_reconciliation.jobs.stored_audits": (_own(RequestCode.READ_AUDITS, Action.GET, ADMIN),),
    "duemq_migration.plugin": (_own(RequestCode.MIGRATE, Action.UPDATE, ADMIN),),
}
"""Rows by module of the handler."""
ROWS: Final[Mapping[int, RequestRow]] = {
    row.code: row for rows in ROWS_BY_MODULE.values() for row in rows
}

LONG_READS: Final = frozenset(
    {
        RequestCode.FIND_COPIES,
        RequestCode.FIND_MESSAGE,
        RequestCode.FIND_MESSAGE_OF_TOPIC,
        RequestCode.SEARCH_PENDING,
        RequestCode.READ_PENDING,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.GET_VIEW,
    }
)
"""Codes of requests that only read, and may take long: they end when their connection closes."""


def row_of(code: int) -> RequestRow:
    """Return the row of a request code; a plugin's code without one requires an administrator."""
    return ROWS.get(code) or _own(code, Action.UPDATE, ADMIN)
