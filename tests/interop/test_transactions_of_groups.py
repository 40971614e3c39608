"""Transactions across failovers of a group: each is ended once, whichever master is called."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.interop.apache_controller import ApacheController
from tests.interop.replicas import COPIED_S
from tests.interop.store_work import TOPIC, pull_topic, send, verify
from tests.interop.test_mixed_groups import ours, wait_equal
from tests.support.remoting_requests import SUCCESS, call
from tests.support.server import Server
from tests.support.wait_until import until

VERSION = "5.3.3"
END_TRANSACTION = 37
COMMIT, ROLLBACK = "8", "12"  # MessageSysFlag
HALF = {"TRAN_MSG": "true", "PGROUP": "P"}
OFFSET_DIGITS = 16  # of an offset message id, at its end
LAST = "last"


def begin(server: Server, body: str, more: dict[str, str]) -> dict[str, str]:
    """Send a half message; return the fields that name it in the end of the transaction."""
    fields = send(server, body, 0, HALF | more)
    return {
        "producerGroup": "P",
        "tranStateTableOffset": fields["queueOffset"],
        "commitLogOffset": str(int(fields["msgId"][-OFFSET_DIGITS:], 16)),
        "fromTransactionCheck": "false",
        "msgId": f"unique-{body}",
        "transactionId": f"unique-{body}",
    }


class Transactions:
    """Open and ended transactions, by the body of the half message."""

    def __init__(self) -> None:
        self.halves: dict[str, dict[str, str]] = {}
        self.verdicts: dict[str, str] = {}

    def begin(self, server: Server, name: str, count: int, **more: str) -> None:
        """Send half messages `name-0`, `name-1`, ..."""
        for number in range(count):
            body = f"{name}-{number}"
            self.halves[body] = begin(server, body, more)

    def end(self, server: Server, name: str) -> None:
        """End the transactions of a name, every third by a rollback; also ended ones again."""
        bodies = [body for body in self.halves if body.rsplit("-", 1)[0] == name]
        for number, body in enumerate(bodies):
            verdict = COMMIT if number % 3 else ROLLBACK
            fields = self.halves[body] | {"commitOrRollback": verdict}
            response = call(server.broker_port, END_TRANSACTION, fields)
            assert response.code == SUCCESS, f"{body}: {response.code} {response.remark}"
            self.verdicts[body] = verdict

    @property
    def committed(self) -> set[str]:
        """Bodies of the committed messages."""
        return {body for body, verdict in self.verdicts.items() if verdict == COMMIT}


@pytest.mark.extended
def test_transactions_are_ended_once_across_two_failovers(tmp_path: Path) -> None:
    """Ends before a failover are repeated after it, as by a producer without an answer."""
    work = Transactions()
    with ApacheController(VERSION, tmp_path / "controller") as controller:
        one, two = ours(controller, tmp_path / "one"), ours(controller, tmp_path / "two")
        with one, two:
            one.create_topic(TOPIC)
            controller.wait_in_sync(one, 2)
            for name in ("before", "between", LAST):
                work.begin(one, name, 12)
                work.begin(one, f"{name}-delayed", 6, DELAY="2")
            for ended in (["before"], ["before", "between"]):
                for name in ended:
                    work.end(one, name)
                    work.end(one, f"{name}-delayed")
                wait_equal(one, two)
                one.kill()
                controller.wait_in_sync(two, 1)
                two.create_topic(TOPIC)
                one.start()
                controller.wait_in_sync(two, 2)
                one, two = two, one
            for name in ("between", LAST):
                work.end(one, name)
                work.end(one, f"{name}-delayed")
            until(
                lambda: work.committed <= {record.body.decode() for record in pull_topic(one)},
                seconds=COPIED_S,
                what="all committed messages",
            )
            wait_equal(one, two)
            assert Counter(record.body.decode() for record in pull_topic(one)) == Counter(
                work.committed
            )
    verify(one.store_dir)
