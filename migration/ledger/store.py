"""SQL of the ledger on SQLite and PostgreSQL: one transaction per call.

Blocking: the event loop uses it through writer.py. A connection lives as long as a transaction, so
a file or a server that goes away is found out at the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

from sqlalchemy import BigInteger, Connection, Table, case, cast, delete, func, select

from message_store.ledger import models
from message_store.ledger.database import Database, clean, insert_into, key_names
from message_store.ledger.errors import UnknownRun
from migration.ledger.records import (
    EventRecord,
    Fold,
    LevelRecord,
    MigrationRecord,
    Record,
    Run,
    SampleRecord,
    VerificationRecord,
)
from migration.ownership.states import State
from migration.plans.plan import Obstacle, ObstacleKind, Plan, PlannedLevel

EVENTS_READ_MAX: Final = 5_000
SAMPLES_READ_MAX: Final = 720
SAMPLES_KEPT_MAX: Final = 10_000
"""Of one run: half a day of them; then every second one goes, and so on."""
RUNS_READ_MAX: Final = 1_000
TABLES: Final[dict[type, type[models.Base]]] = {
    MigrationRecord: models.MigrationRow,
    LevelRecord: models.LevelRow,
    EventRecord: models.EventRow,
    VerificationRecord: models.VerificationRow,
    SampleRecord: models.SampleRow,
}
UNKNOWN_TO_MARKS: Final = frozenset(
    {
        (models.MigrationRow.__tablename__, "plan_id"),
        (models.MigrationRow.__tablename__, "started_by"),
        (models.LevelRow.__tablename__, "routed"),
    }
)
"""A rebuild must not wipe these: an empty text, or a smaller count, leaves what is there."""
_R = TypeVar("_R")


class Ledger(Database):
    """An open ledger of migrations."""

    AWAY = "The migration goes on; the ledger is caught up from the log when it is back"
    REFUSED = "The migration goes on; please report this"
    MISSING = "A broker makes it when something is planned or migrated"

    def write(self, records: Iterable[Record]) -> None:
        """Write records, all or none; of two with one key the later one stays.

        Raises:
            LedgerUnavailable: It is gone, locked or full; the same call may work later.
            LedgerError: It refuses these records.
        """
        with self._transaction() as connection:
            _write(connection, records)

    def rebuild(self, fold: Fold) -> None:
        """Make the ledger say what the log says; what only the ledger knows stays.

        Raises:
            LedgerUnavailable: It is gone, locked or full; the same call may work later.
            LedgerError: It refuses these records.
        """
        event = models.EventRow
        with self._transaction() as connection:
            connection.execute(delete(event).where(event.mark_offset >= fold.next_mark))
            _write(connection, fold.records())

    def plan(self, plan_id: str) -> Plan | None:
        """Return a plan, None if it is not known."""
        with self._reading() as connection:
            return next(iter(_plans(connection, plan_id)), None)

    def plans(self) -> list[Plan]:
        """Return all plans, the newest first."""
        with self._reading() as connection:
            return _plans(connection)

    def migrations(self) -> list[MigrationRecord]:
        """Return all runs, the newest first."""
        run = models.MigrationRow
        query = select(run.__table__).order_by(run.started_ms.desc(), run.migration_id.desc())
        with self._reading() as connection:
            return _records(connection, query.limit(RUNS_READ_MAX), MigrationRecord)

    def run(self, migration_id: str, *, samples_max: int = SAMPLES_READ_MAX) -> Run:
        """Return one run with everything that is known of it.

        Args:
            samples_max: more samples than these are drawn together: the mean rate, the largest
                lateness.

        Raises:
            UnknownRun: There is no such migration.
        """
        with self._reading() as connection:
            found = _records(connection, _of(models.MigrationRow, migration_id), MigrationRecord)
            if not found:
                raise UnknownRun(self.where, migration_id)
            level, event, check = models.LevelRow, models.EventRow, models.VerificationRow
            events = _of(event, migration_id).order_by(event.at_ms.desc(), event.key.desc())
            checks = _of(check, migration_id).order_by(check.at_ms, check.level)
            return Run(
                migration=found[0],
                plan=next(iter(_plans(connection, found[0].plan_id)), None),
                levels=_records(
                    connection, _of(level, migration_id).order_by(level.level), LevelRecord
                ),
                events=_records(connection, events.limit(EVENTS_READ_MAX), EventRecord)[::-1],
                verifications=_records(connection, checks, VerificationRecord),
                samples=_samples(connection, migration_id, samples_max),
            )


def _write(connection: Connection, records: Iterable[Record]) -> None:
    rows: dict[type[models.Base], dict[Any, dict[str, Any]]] = {}
    for record in records:
        if isinstance(record, Plan):
            _write_plan(connection, record)
            continue
        model = TABLES[type(record)]
        values = _values(record)
        if isinstance(record, VerificationRecord):
            values["agrees"] = record.agrees
        key = tuple(values[name] for name in key_names(model))
        rows.setdefault(model, {})[key] = values
    for model, by_key in rows.items():
        _upsert(connection, model, list(by_key.values()))
    for name in {name for name, _ in rows.get(models.SampleRow, ())}:
        _thin(connection, name)


def _thin(connection: Connection, migration_id: str) -> None:
    """Keep one of each two samples of a run that has too many: the one that was later."""
    row = models.SampleRow
    mine = row.migration_id == migration_id
    count = connection.execute(select(func.count()).where(mine)).scalar_one()
    if count <= SAMPLES_KEPT_MAX:
        return
    number = func.row_number().over(order_by=row.at_ms) - 1
    late = func.coalesce(row.late_max_ms, -1).label("late")
    pairs = select(row.at_ms, late, (number - number % 2).label("pair")).where(mine).subquery()
    order = (pairs.c.late.desc(), pairs.c.at_ms)
    place = func.row_number().over(partition_by=pairs.c.pair, order_by=order).label("place")
    placed = select(pairs.c.at_ms, place).subquery()
    second = select(placed.c.at_ms).where(placed.c.place == 2)
    connection.execute(delete(row).where(mine, row.at_ms.in_(second)))


def _write_plan(connection: Connection, plan: Plan) -> None:
    own = {"plan_id": plan.plan_id}
    values = {name: clean(getattr(plan, name)) for name in models.PlanRow.__table__.c.keys()}  # noqa: SIM118
    _upsert(connection, models.PlanRow, [values])
    for part in (models.PlannedLevelRow, models.ObstacleRow):
        connection.execute(delete(part).where(part.plan_id == plan.plan_id))
    levels = [_values(level) | own for level in plan.levels]
    _upsert(connection, models.PlannedLevelRow, levels)
    obstacles = [
        _values(item) | own | {"position": position} for position, item in enumerate(plan.obstacles)
    ]
    _upsert(connection, models.ObstacleRow, obstacles)


def _upsert(connection: Connection, model: type[models.Base], rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table, insert = insert_into(connection, model)
    key = key_names(model)
    new = {name: _newer(table, insert, name) for name in rows[0] if name not in key}
    connection.execute(insert.on_conflict_do_update(index_elements=key, set_=new), rows)


def _newer(table: Table, insert: Any, name: str) -> Any:
    """Return what a column becomes: the new value, unless the log does not know it."""
    old, new = table.c[name], insert.excluded[name]
    if (table.name, name) not in UNKNOWN_TO_MARKS:
        return new
    unknown = new < old if name == "routed" else new == ""
    return case((unknown, old), else_=new)


def _values(record: Any) -> dict[str, Any]:
    return {item.name: clean(getattr(record, item.name)) for item in fields(record)}


def _of(model: Any, migration_id: str) -> Any:
    return select(model.__table__).where(model.migration_id == migration_id)


def _records(connection: Connection, query: Any, record: type[_R]) -> list[_R]:
    names = {item.name for item in fields(record)}  # type: ignore[arg-type]
    return [_record(row, record, names) for row in connection.execute(query).mappings()]


def _record(row: Mapping[Any, Any], record: type[_R], names: set[str]) -> _R:
    values = {str(name): row[name] for name in row if name in names}
    if record is LevelRecord:
        values["state"] = State(values["state"])
    if record is Obstacle:
        values["kind"] = ObstacleKind(values["kind"])
    return record(**values)


def _plans(connection: Connection, plan_id: str | None = None) -> list[Plan]:
    row, level, obstacle = models.PlanRow, models.PlannedLevelRow, models.ObstacleRow
    query = select(row.__table__).order_by(row.made_ms.desc(), row.plan_id.desc())
    if plan_id is not None:
        query = query.where(row.plan_id == plan_id)
    plans = []
    for found in connection.execute(query.limit(RUNS_READ_MAX)).mappings().all():
        levels = select(level.__table__).where(level.plan_id == found["plan_id"])
        obstacles = select(obstacle.__table__).where(obstacle.plan_id == found["plan_id"])
        plans.append(
            Plan(
                **{str(name): found[name] for name in found},
                levels=_records(connection, levels.order_by(level.level), PlannedLevel),
                obstacles=_records(connection, obstacles.order_by(obstacle.position), Obstacle),
            )
        )
    return plans


def _samples(connection: Connection, migration_id: str, count_max: int) -> list[SampleRecord]:
    row = models.SampleRow
    mine = row.migration_id == migration_id
    count, first, last = connection.execute(
        select(func.count(), func.min(row.at_ms), func.max(row.at_ms)).where(mine)
    ).one()
    if count <= count_max:
        query = _of(row, migration_id).order_by(row.at_ms)
        return _records(connection, query, SampleRecord)
    bucket = (row.at_ms - first) // ((last - first) // count_max + 1)
    joined = (
        select(
            func.min(row.migration_id).label("migration_id"),
            func.min(row.at_ms).label("at_ms"),
            func.avg(row.rate_per_s).label("rate_per_s"),
            cast(func.sum(row.delivered), BigInteger).label("delivered"),
            func.max(row.late_p50_ms).label("late_p50_ms"),
            func.max(row.late_p99_ms).label("late_p99_ms"),
            func.max(row.late_max_ms).label("late_max_ms"),
            func.max(row.batch_units).label("batch_units"),
            func.max(row.pause_ms).label("pause_ms"),
        )
        .where(mine)
        .group_by(bucket)
        .order_by(func.min(row.at_ms))
    )
    return _records(connection, joined, SampleRecord)
