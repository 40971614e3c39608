"""Planted faults: without the wait for the replicas, the checks of a simulated group find a loss.

The master is cut off from the other members and the controller, not from its client, and gets a
request while it still has its lease. In the product no answer leaves; with the planted fault the
request is answered, and the next master has not heard of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from duemq.messages.decide import DecideProcessor
from duemq.net.client import RemotingClient
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from duemq_migration.ownership.moves import Migrations
from message_store.replication.acknowledgement import Missing
from tests.simulation.group_checks import check_messages
from tests.simulation.group_load import Sent
from tests.simulation.group_migration import check_migrations
from tests.simulation.group_rig import GROUP, KILLED, GroupRig, Member, group_rig
from tests.simulation.group_run import is_whole
from tests.simulation.test_group_migration import accepted
from tests.simulation.triggered_faults import SECOND
from tests.support.extended import extended
from tests.support.naive_model import log_records
from tests.support.send_path import send_request

pytestmark = KILLED
SEED: Final = 1
STEP_US: Final = 40 * SECOND
CALL_S_MAX: Final = 2.0
BODY: Final = b"pending"


class Unconfirmed:
    """A store whose decisions are answered at once."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def wait_confirmed(self, end_offset: int) -> Missing | None:
        return None


def plant_decisions(patch: pytest.MonkeyPatch) -> None:
    begin = DecideProcessor.__init__

    def planted(self: Any, store: Any, *others: Any) -> None:
        begin(self, Unconfirmed(store), *others)

    patch.setattr(DecideProcessor, "__init__", planted)


def plant_migrations(patch: pytest.MonkeyPatch) -> None:
    async def planted(self: Any) -> Missing | None:
        return None

    patch.setattr(Migrations, "wait_confirmed", planted)


class Client:
    """A client of the master: one pending message, and one request about it.

    Attributes:
        message: The message.
        answer: Body of the answer to the request, None without one.
        has_ended: Whether the request was answered, or was in vain.
    """

    def __init__(self, rig: GroupRig, member: Member) -> None:
        self._address, self._process = member.address, rig.new_client("client")
        self.message = Sent("level")
        self.response: Any = None
        self.has_ended = False
        self._process.start(self._send())

    async def _send(self) -> None:
        async with RemotingClient(self._address) as client:
            request = send_request(
                code=10,
                body=BODY,
                topic="T",
                queueId="0",
                properties="UNIQ_KEY\x01u\x02DELAY\x015\x02",
            )
            response = await accepted(client, request)
            assert response.fields is not None
            self.message.id = response.fields["msgId"]
            self.message.offset = int(self.message.id[16:], 16)

    def send(self, code: int, **wanted: Any) -> None:
        """Send the request."""
        self._process.loop.create_task(self._send_request(code, wanted))

    async def _send_request(self, code: int, wanted: dict[str, Any]) -> None:
        body = msgspec.json.encode(wanted)
        async with RemotingClient(self._address) as client:
            try:
                response = await client.call(Request(code, {}, body), timeout_s=CALL_S_MAX)
                if response.code == 0:
                    self.response = msgspec.json.decode(bytes(response.body))
            except OSError:
                pass
        self.has_ended = True


def cancel(client: Client) -> Callable[[], None]:
    def take() -> None:
        client.message.decisions.add(RequestCode.CANCEL_PENDING)
        client.message.is_cancelled = client.response is not None

    client.send(RequestCode.CANCEL_PENDING, ids=[client.message.id])
    return take


def move(client: Client) -> Callable[[], None]:
    def take() -> None:
        client.message.decisions.add(RequestCode.MOVE_PENDING)
        client.message.moves = int(client.response is not None)

    client.send(RequestCode.MOVE_PENDING, ids=[client.message.id], delay_ms=20_000)
    return take


def migrate(client: Client) -> Callable[[], None]:
    client.send(RequestCode.MIGRATE, action="start", levels=[5])
    return lambda: None


REQUESTS: Final = {
    "cancel": (cancel, plant_decisions, "was cancelled, and came"),
    "move": (move, plant_decisions, "was moved 1 times, and 0 stay"),
    "migration": (migrate, plant_migrations, "starts are lost that were answered"),
}


def run(home: Path, request: Callable[[Client], Callable[[], None]]) -> bool:
    """Cut the master off, send it a request, let another take over; return whether it answered.

    Raises:
        AssertionError: The last log does not have what was answered.
    """
    with group_rig(home, SEED, {"flushDiskType": "SYNC_FLUSH"}) as rig:
        rig.controller.start()
        for member in rig.members:
            member.start()
        assert rig.run(STEP_US, lambda: GROUP in rig.controller.model.groups)
        group = rig.controller.model.groups[GROUP]
        assert rig.run(STEP_US, lambda: rig.master() and len(group.in_sync) == 3)
        former = rig.master()
        assert former is not None
        client = Client(rig, former)
        assert rig.run(STEP_US, lambda: client.message.id)
        others = [name for name in rig.hosts if name not in (former.host.name, "client")]
        for name in others:
            rig.network.blocked |= {(name, former.host.name), (former.host.name, name)}
        take = request(client)
        assert rig.run(STEP_US, lambda: client.has_ended)
        take()
        assert rig.run(STEP_US, lambda: rig.master() not in (None, former))
        rig.network.blocked.clear()
        assert rig.run(STEP_US, lambda: is_whole(rig))
        stores = [member.store for member in rig.members]
        runs = {client.response["migration"]} if client.response and request is migrate else set()
        check_migrations(stores, runs)
        check_messages(log_records(stores[0]), {BODY: client.message})
        rig.stop_members()
        return client.response is not None


@pytest.mark.parametrize("name", ["cancel", extended("move"), extended("migration")])
def test_nothing_is_answered_before_the_replicas_have_it(name: str, tmp_path: Path) -> None:
    request, _, _ = REQUESTS[name]
    assert not run(tmp_path, request)


@pytest.mark.parametrize("name", ["cancel", extended("move"), "migration"])
def test_an_answer_that_waits_for_no_replica_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, plant, found = REQUESTS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        run(tmp_path, request)
