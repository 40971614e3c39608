"""Views of migrations as plain data: for `duemq migrate status`, the console and brokerStatus."""

from __future__ import annotations

from duemq_migration.ownership.states import State
from duemq_migration.steps.service import MigrationService, plain


def status_view(service: MigrationService) -> dict[str, object]:
    """Return state and progress of every level."""
    migrations, pace = service.migrations, service.pace
    health = service.ledger.health
    late = pace.late
    return {
        "active": migrations.active_levels,
        "levels": [_level(service, level) for level in sorted(migrations.journal.levels)],
        "rate_per_s": pace.rate_per_s,
        "late_p50_ms": None if late is None else late.quantile_ms(0.5),
        "late_p99_ms": None if late is None else late.quantile_ms(0.99),
        "throttle": {
            "target_p99_ms": service.throttle.limits.target_p99_ms,
            "factor": service.throttle.limits.factor,
            "usual_p99_ms": service.throttle.baseline_ms,
            "target_now_ms": service.throttle.target_ms,
            "rate_per_s": service.throttle.limits.rate_per_s,
            "batch": service.throttle.batch,
            "pause_ms": service.throttle.pause_ms,
        },
        "ledger": {
            "url": service.ledger.where,
            "trouble": health.trouble,
            "pending": health.pending,
            "dropped": health.dropped,
        },
        "routed": migrations.router.routed,
        "unrenamed": _unrenamed_count(service),
    }


def _unrenamed_count(service: MigrationService) -> int:
    """Return the number of transferred records whose DELAY was not renamed, since the start."""
    owners = service.owners
    return 0 if owners is None else owners.timers.transfers.records.unnamed


def _level(service: MigrationService, level: int) -> dict[str, object]:
    projection = service.migrations.journal.levels[level]
    current = service.migrations.state_of(level)
    verified = service.verified.get(level)
    return {
        "level": level,
        "migration": projection.migration,
        "state": current.state.value,
        "paused": current.paused,
        "cause": current.cause,
        "blocked_by": service.migrations.blocked_by.get(level, ""),
        "operator": projection.operator,
        "changed_ms": projection.changed_ms,
        "routed": level in service.migrations.router.levels,
        "rules": dict(projection.rules) if projection.routed else {},
        "fence": projection.fence,
        "moved": projection.transferred,
        "returned": projection.returned,
        "remaining": service.migrations.remaining(level) if service.owners is not None else 0,
        "verified": None if verified is None else plain(verified),
    }


def runtime_view(service: MigrationService) -> dict[str, str]:
    """Return the entries of brokerStatus for levels that are or were migrated."""
    return {
        f"migration_{number}": f"{level.state or State.PLANNED.value},{level.transferred},"
        f"{level.returned}"
        for number, level in sorted(service.migrations.journal.levels.items())
    }
