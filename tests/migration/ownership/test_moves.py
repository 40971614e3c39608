"""States of all levels of a store, and the file of the journal's projection."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from delayed_delivery import ownership
from delayed_delivery.ownership import Route
from duemq_migration.ownership import projection
from duemq_migration.ownership.moves import Migrations
from duemq_migration.ownership.states import IllegalMove, State
from tests.migration.bench import Bench, with_broker
from tests.support.migration_rig import MigrationRig


def test_of_levels_that_cannot_all_start_none_starts(tmp_path: Path) -> None:
    """A second command may have started one while the first one waited for the ledger."""

    async def steps(bench: Bench) -> None:
        await bench.command("start", levels=[5])
        migrations, end = bench.service.migrations, bench.broker.store.max_offset
        with pytest.raises(IllegalMove, match="level 5 is"):
            migrations.start([4, 5], {}, migration="run", operator="anna")
        assert migrations.state_of(4).state is State.PLANNED
        assert bench.broker.store.max_offset == end

    with_broker(tmp_path, steps)


def test_the_projection_is_written_when_the_journal_is_synced(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    migrations = Migrations(rig.store, rig.clock, rig.router, on_change=lambda *records: None)
    path = rig.store.config_path(projection.PROJECTION_FILE)
    rig.route(4)
    migrations.catch_up()
    assert isinstance([*ownership.read(rig.store)][-1].record, Route)
    asyncio.run(migrations.write())
    assert not path.exists()
    rig.store.flush()
    asyncio.run(migrations.write())
    assert path.exists()
    assert projection.restore(rig.store) == migrations.journal
