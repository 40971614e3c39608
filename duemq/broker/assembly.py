"""Assembly of a broker: creates and connects managers, processors and plugins.

store --- put path (hooks of plugins) --- send, send-back, transactions
  |   \\-- dispatchers: long polls, statistics, plugins
topics, groups, offsets (files in config/) --- pull, clients, offsets, admin, ...
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from duemq.admin.absent_features import AbsentFeatures
from duemq.admin.client_admin import ClientAdminProcessor
from duemq.admin.config_admin import ConfigProcessor
from duemq.admin.connected_reads import ConnectedReads
from duemq.admin.consume_report import ConsumeReport
from duemq.admin.group_admin import GroupAdminProcessor
from duemq.admin.runtime_info import RuntimeInfo
from duemq.admin.topic_admin import TopicAdminProcessor
from duemq.admin.views import AdminProcessor, RequestView
from duemq.auth.account_requests import AccountRequests
from duemq.auth.local_administration import LocalAdministration
from duemq.auth.plain_requests import BrokerNames, PlainRequests
from duemq.auth.request_table import LONG_READS, ROWS
from duemq.broker.components import BrokerComponents, BrokerContext
from duemq.messages.copies import CopiesProcessor
from duemq.messages.decide import DecideProcessor
from duemq.messages.history_request import HistoryProcessor
from duemq.messages.pending_hits import PendingHitsProcessor
from duemq.messages.pending_pages import PendingPagesProcessor
from duemq.messages.queries import QueryProcessor
from duemq.messages.recall import RecallProcessor
from duemq.messages.replica_referrals import of_role
from duemq.metrics.put_get_stats import BrokerStats
from duemq.namesrv.second_master import SecondMaster
from duemq.net.dispatcher import AccessCheck, Dispatcher, Handler
from duemq.net.memory import MemoryBudget
from duemq.net.meters import RpcMeter
from duemq.net.view_names import CONFIGURATION_VIEW, OPERATORS_VIEW, REPLICATION_VIEW, RIGHTS_VIEW
from duemq.pop.names import REVIVE_GROUP
from duemq.pop.order_info import VIEW as ORDER_INFO_VIEW
from duemq.pop.request_modes import RequestModes
from duemq.pop.service import PopParts, PopService
from duemq.pull.long_polls import LongPolls
from duemq.pull.offset_requests import OffsetProcessor
from duemq.pull.pull import PullProcessor
from duemq.pull.queue_locks import LockProcessor, LockTable
from duemq.pull.reset_offsets import ResetProcessor
from duemq.registry.client_requests import ClientProcessor
from duemq.registry.clients import ClientTable
from duemq.registry.config_file import ConfigFile
from duemq.registry.consumer_offsets import FILE_NAME as OFFSETS_FILE
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupConfig, GroupManager
from duemq.registry.journal_log import JOURNAL_TOPIC, StoreLog, TableKind
from duemq.registry.managers import Identity
from duemq.registry.table_journal import TableJournal
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topics import TopicManager
from duemq.replication.ha_server import HaServer
from duemq.replication.member_requests import member_requests, with_group
from duemq.replication.replica import master_view, replica_of
from duemq.send.put_path import PutPath
from duemq.send.reply import ReplyProcessor
from duemq.send.schedule_refusal import ScheduleRefusal
from duemq.send.send_back import SendBackProcessor
from duemq.send.send_header import broker_suffix
from duemq.send.timer_refusal import refuse_timers
from duemq.transactions.meters import Meters
from duemq.transactions.transactions import Transactions
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.topics import SCHEDULES_TOPIC, TIMER_TOPIC, TRANSACTION_GROUP

if TYPE_CHECKING:
    from message_store.hooks import PutHook
    from message_store.kernels.preparation import Preparation
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
RUNTIME_VIEW = ".runtime"  # a plugin view with this suffix adds entries to runtime info (28)


class Processor(Protocol):
    """Interface of a processor: handlers by request code."""

    def handlers(self) -> Mapping[int, Handler]: ...


DELAYED_CODES: Final = frozenset(code for code, row in ROWS.items() if row.needs_kernels)
PENDING_KERNELS: Final = "pending_timers"  # group of kernels that such requests call
COMPILATION_S_MAX: Final = 2.5
"""Maximum wait of a request for kernels: Apache's clients wait 3 s for a response, and would take
a change that is made later for a failed one."""
COMPILING: Final = "kernels are being compiled since the first start: try again in a minute"


def _access_of(context: BrokerContext) -> AccessCheck:
    """Return the access check of the dispatcher."""
    if context.access is not None:
        return context.access.gate
    config = context.config()
    return LocalAdministration(config.administer_from, (config.broker_ip,))


def assemble(store: MessageStore, context: BrokerContext) -> BrokerComponents:
    """Create the components of a broker on an open store.

    Raises:
        CorruptStore: A file in config/ cannot be used.
    """
    parts = _create_managers(store, context)
    if context.replication().is_replica:
        tables = parts.topics, parts.groups, parts.offsets, parts.modes
        plugins = context.plugins
        plugins.open_replica(store)
        parts.replica = replica_of(
            store,
            tables,
            parts.long_polls,
            context.replication(),
            context.clock,
            context.connect,
            context.membership,
            apply_master_config=lambda properties, log_end: plugins.follow_master(
                properties, store, log_end
            ),
        )
    elif context.ha_socket is not None:
        parts.ha_server = HaServer(
            context.ha_socket,
            store,
            context.replication(),
            context.ha_server,
            context.clock,
            own_addresses=(context.config().broker_ip,),
            member=context.membership,
        )
    if parts.replica is None and context.membership is None:
        name, address = parts.identity.broker_name, f"{context.config().broker_ip}:{context.port}"
        parts.second_master = SecondMaster(name, address, context.clock)
    store.add_dispatcher(parts.long_polls.on_append)
    store.add_dispatcher(parts.stats.on_append)
    for dispatcher in context.plugins.dispatchers():
        store.add_dispatcher(dispatcher)
    for processor in _processors(parts, context):
        parts.dispatcher.add(of_role(processor.handlers(), lambda: parts.master_address))
    plugin_handlers = context.plugins.request_handlers(set(parts.dispatcher))
    parts.dispatcher.add(plugin_handlers)
    load = partial(_load_kernels, context.kernels)
    parts.dispatcher.delay(plugin_handlers.keys() | DELAYED_CODES, load)
    parts.dispatcher.wrap(LONG_READS, ConnectedReads().handler)
    return parts


async def _load_kernels(kernels: Preparation) -> None:
    """Return when requests may call every kernel.

    Raises:
        RequestError: Kernels are compiled for longer than `COMPILATION_S_MAX`.
    """
    try:
        async with asyncio.timeout(COMPILATION_S_MAX):
            await kernels.wait_for_all()
    except TimeoutError:
        raise RequestError(ResponseCode.SYSTEM_BUSY, COMPILING) from None
    await kernels.load_for_request(PENDING_KERNELS)


def _load_tables(
    store: MessageStore, context: BrokerContext, memory: MemoryBudget
) -> tuple[TopicManager, GroupManager, OffsetManager]:
    config, clock = context.config(), context.clock
    journal_log, epoch = StoreLog(store, clock), context.epoch
    topics = TopicManager(
        config,
        store.topics,
        ConfigFile(store.config_path("topics.json")),
        clock,
        system_topics=[*context.plugins.system_topics(), JOURNAL_TOPIC],
        journal=TableJournal(TableKind.TOPIC, journal_log, TopicConfig.from_json, epoch=epoch),
    )
    topics.load()
    groups = GroupManager(
        ConfigFile(store.config_path("subscriptionGroup.json")),
        clock,
        auto_create=config.auto_create_group,
        groups_max=config.groups_max,
        journal=TableJournal(TableKind.GROUP, journal_log, GroupConfig.from_json, epoch=epoch),
    )
    groups.load()
    offsets_file = ConfigFile(store.config_path(OFFSETS_FILE))
    offsets = OffsetManager(offsets_file, clock, store, pairs_max=config.offsets_max, memory=memory)
    offsets.load()
    offsets.prove((TRANSACTION_GROUP, REVIVE_GROUP))
    offsets.follow(store, (TRANSACTION_GROUP, REVIVE_GROUP))
    offsets.remove_deleted()
    offsets.fit(store.queue_bounds)
    return topics, groups, offsets


def _create_managers(store: MessageStore, context: BrokerContext) -> BrokerComponents:
    config, clock = context.config(), context.clock
    memory, rpc = MemoryBudget(config.memory_bytes_max), RpcMeter(clock)
    topics, groups, offsets = _load_tables(store, context, memory)
    hooks: list[PutHook] = [] if context.plugins.has_topic(TIMER_TOPIC) else [refuse_timers]
    if not context.plugins.has_topic(SCHEDULES_TOPIC):
        hooks.append(ScheduleRefusal(store.topics))
    return BrokerComponents(
        store=store,
        topics=topics,
        groups=groups,
        offsets=offsets,
        clients=ClientTable(
            expires_ms=config.channel_expired_ms,
            groups_max=config.client_groups_max,
            memory=memory,
        ),
        long_polls=LongPolls(clock, store, polls_max=config.long_polls_max, memory=memory),
        memory=memory,
        stats=BrokerStats(store.topics),
        hooks=hooks,
        put_path=PutPath(store, hooks, clock),
        modes=RequestModes.loaded(store.config_path),
        locks=LockTable(memory),
        meters=Meters(),
        rpc=rpc,
        dispatcher=Dispatcher(meter=rpc, access=_access_of(context)),
        identity=Identity(
            broker_name=config.broker_name,
            cluster_name=config.cluster_name,
            broker_id=config.broker_id,
            host=(ipaddress.ip_address(config.broker_ip).packed, context.port),
        ),
    )


def _processors(parts: BrokerComponents, context: BrokerContext) -> list[Processor]:
    config, clock, records = context.config, context.clock, context.records
    store, topics, groups, offsets = parts.store, parts.topics, parts.groups, parts.offsets
    identity, put, recalls = parts.identity, parts.put_path.put_confirmed, context.plugins.recalls()
    clients = ClientProcessor(parts.clients, topics, groups, clock, config, records)
    suffix = broker_suffix(config())
    transactions = Transactions(
        store, topics, offsets, parts.clients, put, identity, clock, config, parts.meters, records
    )
    parts.transactions = transactions
    transactions.queue.recover()  # before plugins append anything
    parts.tasks += [parts.long_polls.running(), clients.running()]
    if parts.replica is None:
        parts.tasks.append(transactions.running())
    parts.pop = PopService(
        _pop_parts(parts, context),
        has_timers=context.plugins.has_topic(TIMER_TOPIC),
        delivered_ms=context.plugins.delivered_ms,
        pending=context.plugins.pending_messages,
    )
    parts.pull = PullProcessor(
        store,
        topics,
        groups,
        offsets,
        parts.clients,
        parts.long_polls,
        parts.stats,
        config(),
        replication=context.replication,
        records=records,
        compiled=lambda: context.kernels.is_done,
        retries=parts.pop.retries,
    )
    topics.resized = parts.pop.resized
    if parts.replica is None:
        parts.pop.recover()
        store.retention.add_pin(parts.pop.first_needed, owner="pop")
    parts.tasks.append(parts.pop.running())
    return [
        clients,
        transactions,
        HistoryProcessor(
            store,
            context.plugins.pending_messages,
            transactions.queue.halves.is_finished,
            parts.pop.open_pops.of,
        ),
        parts.pull,
        SendBackProcessor(
            store, topics, groups, put, identity, parts.stats.sent_back, config, records
        ),
        RecallProcessor(topics, identity, clock, config, recalls, records),
        OffsetProcessor(store, topics, groups, offsets),
        LockProcessor(parts.locks, clock),
        parts.pop,
        ReplyProcessor(store, topics, parts.clients, put, identity, clock, records, suffix=suffix),
        *_admin_processors(parts, context),
    ]


def _pop_parts(parts: BrokerComponents, context: BrokerContext) -> PopParts:
    return PopParts(
        store=parts.store,
        topics=parts.topics,
        groups=parts.groups,
        offsets=parts.offsets,
        clients=parts.clients,
        long_polls=parts.long_polls,
        stats=parts.stats,
        put_path=parts.put_path,
        modes=parts.modes,
        identity=parts.identity,
        clock=context.clock,
        config=context.config,
        kernels=context.kernels,
        records=context.records,
        replication=context.replication,
        routes=context.routes,
    )


def _admin_processors(parts: BrokerComponents, context: BrokerContext) -> list[Processor]:
    store, identity, pop = parts.store, parts.identity, parts.pop
    assert pop is not None
    groups = GroupAdminProcessor(
        store,
        parts.topics,
        parts.groups,
        parts.offsets,
        parts.clients,
        identity,
        context.clock,
        consume_tps=parts.stats.group_tps,
    )
    return [
        QueryProcessor(
            store,
            parts.clients,
            lambda: (store.index.safe_ms, store.max_offset),
            count_default=context.store_config.query_count_max,
            records=context.records,
        ),
        ResetProcessor(
            store,
            parts.topics,
            parts.groups,
            parts.offsets,
            parts.clients,
            parts.long_polls,
            identity,
            push=lambda: not context.config().server_side_reset,
        ),
        ClientAdminProcessor(parts.clients, store, identity, context.records),
        TopicAdminProcessor(
            store,
            parts.topics,
            parts.offsets,
            identity,
            forget=pop.forget_topic,
            groups_online=parts.clients.groups_subscribed_to,
            put_tps=parts.stats.topic_tps,
        ),
        groups,
        ConsumeReport(
            store,
            parts.topics,
            parts.groups,
            parts.offsets,
            parts.clients,
            groups.consume_stats,
            f"{context.config().broker_ip}:{context.port}",
        ),
        *_operating_processors(parts, context),
    ]


def _operating_processors(parts: BrokerComponents, context: BrokerContext) -> list[Processor]:
    """Return the processors for operators: views, configuration, runtime info, decisions."""
    store, views = parts.store, context.plugins.admin_views()
    second = parts.second_master
    master = master_view(
        store, parts.ha_server, context.clock, failure=lambda: second.failure if second else ""
    )
    role_view = parts.replica.view if parts.replica else master
    parts.replication = with_group(role_view, context.membership)
    assert parts.pop is not None
    views |= {REPLICATION_VIEW: parts.replication, CONFIGURATION_VIEW: context.configuration}
    if context.access is not None:
        views[OPERATORS_VIEW] = RequestView(context.access.audit_view)
        views[RIGHTS_VIEW] = RequestView(context.access.gate.rights)
    views |= {ORDER_INFO_VIEW: parts.pop.orderly.table.to_json}
    figures = [
        cast("Callable[[], Mapping[str, str]]", view)
        for name, view in views.items()
        if name.endswith(RUNTIME_VIEW)
    ]
    figures.append(parts.rpc.put_figures)
    return [
        *_account_processors(parts, context),
        _member_requests(parts, context),
        RuntimeInfo(
            store,
            parts.stats,
            context.config,
            context.clock,
            started_ms=context.started_ms,
            figures=figures,
            ha_client=parts.replica.ha if parts.replica is not None else None,
            ha_server=parts.ha_server,
        ),
        ConfigProcessor(
            context.values,
            context.version,
            context.reconfigure,
            lambda: context.config().frozen_keys,
        ),
        AdminProcessor(views),
        AbsentFeatures(
            parts.save_all,
            is_master=parts.replica is None,
            has_controller=context.membership is not None,
            has_accounts=context.access is not None and context.access.accounts is not None,
        ),
        *_decisions(parts, context),
        PendingPagesProcessor(store, context.plugins.pending_messages),
        CopiesProcessor(store),
    ]


def _decisions(parts: BrokerComponents, context: BrokerContext) -> list[Processor]:
    """Return the processors of decisions about pending messages."""
    store, ports = parts.store, context.plugins.pending_messages
    decisions = DecideProcessor(
        store, ports, parts.hooks, context.clock, parts.identity.broker_name
    )
    return [decisions, PendingHitsProcessor(store, ports, decisions)]


def _member_requests(parts: BrokerComponents, context: BrokerContext) -> Processor:
    """Return the processor of requests between members of a group."""
    ip = context.config().broker_ip
    return member_requests(
        parts.store,
        context.membership,
        f"{ip}:{context.port}",
        f"{ip}:{context.ha_port}",
        is_master=parts.replica is None,
        registered_id=parts.identity.broker_id,
    )


def _account_processors(parts: BrokerComponents, context: BrokerContext) -> list[Processor]:
    """Return the processors of account requests."""
    access, config = context.access, context.config()
    if access is not None and access.accounts is not None:
        return [AccountRequests(access.accounts, access.audit)]
    if access is None or access.files is None:
        return []
    names = BrokerNames(
        cluster=config.cluster_name,
        broker=parts.identity.broker_name,
        address=f"{config.broker_ip}:{context.port}",
    )
    return [PlainRequests(access.files, names, context.clock)]
