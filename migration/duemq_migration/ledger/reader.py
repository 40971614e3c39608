"""Reader of migrations in a ledger, for tables, JSON and the history page."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Connection, Table, cast, func, select

from duemq_common.ledger import tables
from duemq_common.ledger.errors import UnknownRun
from duemq_common.ledger.ledger import Ledger, read_rows
from duemq_migration.ledger.records import (
    EventRecord,
    LedgerLevel,
    MigrationRecord,
    MigrationRun,
    SampleRecord,
    VerificationRecord,
)
from duemq_migration.plans.plan import Obstacle, ObstacleKind, Plan, PlannedLevel

EVENTS_READ_MAX: Final = 5_000
SAMPLES_READ_MAX: Final = 720
RUNS_READ_MAX: Final = 1_000
_R = TypeVar("_R")


class MigrationLedger(Ledger):
    """Reader of migrations in an open ledger."""

    def plans(self, plan_id: str | None = None) -> list[Plan]:
        """Return all plans, newest first, or the plan with an id."""
        with self.reading() as connection:
            return _plans(connection, plan_id)

    def migrations(self) -> list[MigrationRecord]:
        """Return all runs, newest first."""
        run = tables.MIGRATIONS
        query = select(run).order_by(run.c.started_ms.desc(), run.c.migration_id.desc())
        with self.reading() as connection:
            return read_rows(connection, query.limit(RUNS_READ_MAX), MigrationRecord)

    def run(self, migration_id: str, *, samples_max: int = SAMPLES_READ_MAX) -> MigrationRun:
        """Return one run with all its records.

        Args:
            samples_max: Maximum number of samples; more are merged, with mean rate and maximum
                lateness.

        Raises:
            UnknownRun: The ledger has no migration with this id.
        """
        event, check = tables.EVENTS.c, tables.VERIFICATIONS.c
        with self.reading() as connection:

            def rows(kind: type[_R], table: Table, *order: ColumnElement[Any]) -> list[_R]:
                query = select(table).where(table.c.migration_id == migration_id).order_by(*order)
                return read_rows(connection, query.limit(EVENTS_READ_MAX), kind)

            migrations = rows(MigrationRecord, tables.MIGRATIONS)
            if not migrations:
                raise UnknownRun(self.where, migration_id)
            newest = rows(EventRecord, tables.EVENTS, event.at_ms.desc(), event.key.desc())
            return MigrationRun(
                migration=migrations[0],
                plan=next(iter(_plans(connection, migrations[0].plan_id)), None),
                levels=rows(LedgerLevel, tables.LEVELS, tables.LEVELS.c.level),
                events=newest[::-1],
                verifications=rows(
                    VerificationRecord, tables.VERIFICATIONS, check.at_ms, check.level
                ),
                samples=_samples(connection, migration_id, samples_max),
            )


def _plans(connection: Connection, plan_id: str | None) -> list[Plan]:
    plan, level, obstacle = tables.PLANS, tables.PLAN_LEVELS, tables.PLAN_OBSTACLES
    query = select(plan).order_by(plan.c.made_ms.desc(), plan.c.plan_id.desc())
    if plan_id is not None:
        query = query.where(plan.c.plan_id == plan_id)
    plans = []
    for row in connection.execute(query.limit(RUNS_READ_MAX)).mappings().all():
        levels = select(level).where(level.c.plan_id == row["plan_id"]).order_by(level.c.level)
        obstacles = select(obstacle).where(obstacle.c.plan_id == row["plan_id"])
        obstacle_rows = connection.execute(obstacles.order_by(obstacle.c.position))
        plans.append(
            Plan(
                **{str(name): row[name] for name in row},
                levels=read_rows(connection, levels, PlannedLevel),
                obstacles=[
                    Obstacle(
                        kind=ObstacleKind(item.kind),
                        level=item.level,
                        count=item._mapping["count"],  # `count` is also a method of the row
                        text=item.text,
                        blocks=item.blocks,
                    )
                    for item in obstacle_rows
                ],
            )
        )
    return plans


def _samples(connection: Connection, migration_id: str, count_max: int) -> list[SampleRecord]:
    sample = tables.SAMPLES.c
    of_run = sample.migration_id == migration_id
    count, first, last = connection.execute(
        select(func.count(), func.min(sample.at_ms), func.max(sample.at_ms)).where(of_run)
    ).one()
    if count <= count_max:
        query = select(tables.SAMPLES).where(of_run).order_by(sample.at_ms)
        return read_rows(connection, query, SampleRecord)
    largest = ("late_p50_ms", "late_p99_ms", "late_max_ms", "batch_units", "pause_ms")
    merged = select(
        func.min(sample.migration_id).label("migration_id"),
        func.min(sample.at_ms).label("at_ms"),
        func.avg(sample.rate_per_s).label("rate_per_s"),
        cast(func.sum(sample.delivered), BigInteger).label("delivered"),
        *(func.max(sample[name]).label(name) for name in largest),
    )
    bucket = (sample.at_ms - first) // ((last - first) // count_max + 1)
    query = merged.where(of_run).group_by(bucket).order_by(func.min(sample.at_ms))
    return read_rows(connection, query, SampleRecord)
