"""Properties that the broker appends to every message of a client."""

from __future__ import annotations

from duemq.configuration.config import BrokerConfig
from duemq.send.send_header import broker_suffix


def configured_suffix(config: BrokerConfig) -> bytes:
    """Return the encoded properties for the configured region, cluster and trace switch."""
    return broker_suffix(
        region=config.region_id, cluster=config.cluster_name, trace_on=config.trace_on
    )
