"""Assembly of what appends the sends of clients: frames of remoting, and decoded sends."""

from __future__ import annotations

from duemq.assembly import Parts, Surroundings
from duemq.net.limits import body_bytes_max
from duemq.pop.pop_turns import PopTurns
from duemq.send.answers import Answering, SendSettings
from duemq.send.decoded_sends import DecodedSends
from duemq.send.ingest import KERNELS, Ingest
from duemq.send.own_properties import own_suffix
from duemq.send.send import SendProcessor, SendRules
from duemq.transactions.half_messages import as_half


def make_ingest(parts: Parts, around: Surroundings) -> Ingest:
    """Return what takes the sends of all connections together."""
    access = around.access.gate if around.access else None
    return Ingest(
        parts.put_path, parts.store.topics, _sender(parts, around), _settings(parts, around),
        parts.rpc, access=access, kernels=around.kernels, runs=_pop_turns(parts, around),
    )  # fmt: skip


def _pop_turns(parts: Parts, around: Surroundings) -> PopTurns | None:
    """Return what takes the pops and acknowledgements of a turn together."""
    if parts.pop is None:
        return None
    return parts.pop.turns(
        parts.rpc,
        access=around.access.gate if around.access else None,
        is_ready=lambda: around.kernels.is_ready(KERNELS),
        confirms=_confirms(parts, around),
    )


def make_decoded_sends(parts: Parts, around: Surroundings) -> DecodedSends:
    """Return what appends the sends of callers in this process."""
    answering = Answering(
        parts.store, parts.store.topics, _settings(parts, around), lambda: None, parts.rpc
    )
    return DecodedSends(parts.put_path, _sender(parts, around), answering)


def _sender(parts: Parts, around: Surroundings) -> SendProcessor:
    suffix = own_suffix(around.config())

    def rules() -> SendRules:
        now = around.config()
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
        half=as_half,
        run_hooks=parts.put_path.run_hooks,
        group_locked=lambda group: parts.locks.any_alive(group, around.clock.steady_ms()),
        rules=rules,
        clock=around.clock,
    )


def _settings(parts: Parts, around: Surroundings) -> SendSettings:
    config, store_config = around.config(), around.store_config
    return SendSettings(
        suffix=own_suffix(config),
        store_host=parts.identity.host,
        broker_name=parts.identity.broker_name,
        region=config.region_id,
        trace_on=config.trace_on,
        body_bytes_max=body_bytes_max(store_config.message_bytes_max),
        confirmed=_confirms(parts, around),
    )


def _confirms(parts: Parts, around: Surroundings) -> bool:
    """Return whether answers wait for the disk or for replicas."""
    return around.store_config.sync_flush or parts.store.replicated.required
