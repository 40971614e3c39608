"""Scheduler and metrics registry, shared by a broker process and its plugins.

Their libraries are imported at first use, since most commands do not need them.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

from duemq.configuration.config import BrokerConfig

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from duemq.broker.periodic_jobs import PeriodicJobs


def new_registry(config: BrokerConfig) -> CollectorRegistry:
    """Return the registry of /metrics, which includes Apache's series."""
    from prometheus_client import ProcessCollector

    from duemq.broker.collectors.native_registry import NativeRegistry

    registry = NativeRegistry(config.cluster_name, config.broker_name)
    ProcessCollector(registry=registry)
    return registry


def new_scheduler() -> PeriodicJobs:
    """Return the scheduler of periodic jobs, not started."""
    from duemq.broker.periodic_jobs import PeriodicJobs

    defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
    return PeriodicJobs(timezone=UTC, job_defaults=defaults)
