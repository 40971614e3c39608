"""Assembly of the send processing: ingest of remoting frames, and in-process sends."""

from __future__ import annotations

import os

from duemq.broker.components import BrokerComponents, BrokerContext
from duemq.net.limits import body_bytes_max
from duemq.pop.ack_batch import AckBatch
from duemq.pop.pop_turns import PopTurns
from duemq.send.decoded_sends import DecodedSends
from duemq.send.ingest import KERNELS, Ingest
from duemq.send.responses import SendResponses, SendSettings
from duemq.send.send import SendProcessor, SendRules
from duemq.send.send_header import broker_suffix
from duemq.transactions.half_messages import to_half_message
from message_store.config import SYNC_FLUSH


def make_ingest(parts: BrokerComponents, context: BrokerContext) -> Ingest:
    """Return the ingest of all connections."""
    access = context.access.gate if context.access else None
    return Ingest(
        parts.put_path,
        parts.store.topics,
        _sender(parts, context),
        _settings(parts, context),
        parts.rpc,
        access=access,
        kernels=context.kernels,
        batched=_pop_turns(parts, context),
        poll_s=context.config().busy_poll_us / 1e6 if len(os.sched_getaffinity(0)) > 1 else 0.0,
        dispatcher=parts.dispatcher,
    )


def _pop_turns(parts: BrokerComponents, context: BrokerContext) -> PopTurns | None:
    """Return the batched processing of pops and acknowledgements, if POP is enabled."""
    if parts.pop is None:
        return None
    return parts.pop.turns(
        parts.rpc,
        access=context.access.gate if context.access else None,
        is_ready=lambda: context.kernels.is_ready(KERNELS),
        confirms=_confirms(parts, context),
    )


def make_ack_batch(parts: BrokerComponents, context: BrokerContext) -> AckBatch | None:
    """Return the batched acknowledgements of v5 clients, if POP is enabled."""
    return parts.pop.ack_batch(confirms=_confirms(parts, context)) if parts.pop else None


def make_decoded_sends(parts: BrokerComponents, context: BrokerContext) -> DecodedSends:
    """Return the batching of in-process sends."""
    responses = SendResponses(
        parts.store, parts.store.topics, _settings(parts, context), lambda: None, parts.rpc
    )
    return DecodedSends(parts.put_path, _sender(parts, context), responses)


def _sender(parts: BrokerComponents, context: BrokerContext) -> SendProcessor:
    suffix = broker_suffix(context.config())

    def rules() -> SendRules:
        now = context.config()
        return SendRules(
            suffix=suffix,
            store_host=parts.identity.host,
            body_bytes_max=body_bytes_max(parts.store.config.message_bytes_max),
            start_accept_ms=now.start_accept_ms,
            reject_transactions=now.reject_transactions,
        )

    return SendProcessor(
        parts.store.topics,
        parts.topics,
        parts.groups,
        half=to_half_message,
        run_hooks=parts.put_path.run_hooks,
        group_locked=lambda group: parts.locks.any_alive(group, context.clock.steady_ms()),
        rules=rules,
        clock=context.clock,
        records=context.records,
    )


def _settings(parts: BrokerComponents, context: BrokerContext) -> SendSettings:
    config, store_config = context.config(), context.store_config
    return SendSettings(
        suffix=broker_suffix(config),
        store_host=parts.identity.host,
        broker_name=parts.identity.broker_name,
        region=config.region_id,
        trace_on=config.trace_on,
        body_bytes_max=body_bytes_max(store_config.message_bytes_max),
        confirmed=_confirms(parts, context),
    )


def _confirms(parts: BrokerComponents, context: BrokerContext) -> bool:
    """Return whether responses wait for disk or replicas."""
    return context.store_config.flush_disk_type == SYNC_FLUSH or parts.store.replicated.required
