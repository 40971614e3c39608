"""Pending messages of all kinds in a store, and the check of their deliveries.

Levels, timers, transactions and occurrences of a schedule, all in one topic.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Final, Self

from message_store.log.record import Record
from tests.interop.store_work import DELIVERED_S, LEVEL_MS, QUEUE_COUNT, pull_topic, send
from tests.interop.test_transactions_of_groups import COMMIT, END_TRANSACTION, ROLLBACK, begin
from tests.support.remoting_requests import SUCCESS, call
from tests.support.server import Server
from tests.support.wait_until import now_ms, until

TIMER_DELAYS_MS: Final = (2_000, 9_500, 20_100, 30_700)  # the later ones roll
SCHEDULE_MS: Final = 3_000
SCHEDULE_BODY: Final = "occurrence"
LEVEL: Final = 2  # of messages of transactions
COUNT: Final = 4  # messages of each kind


@dataclass
class StoreContents:
    """Messages by body with the earliest time of delivery, and open transactions.

    Attributes:
        is_newer: False for a store of 0.1.0, which has neither timers nor schedules.
    """

    is_newer: bool = True
    due_ms: dict[str, int] = field(default_factory=dict)
    halves: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, server: Server, name: str) -> None:
        """Send messages of all kinds; half of the transactions are ended, the others stay open."""
        for number in range(COUNT):
            for level, delay_ms in LEVEL_MS.items():
                body = f"{name}-level-{level}-{number}"
                self.due_ms[body] = now_ms() + delay_ms
                send(server, body, number, {"DELAY": str(level)})
            for delay_ms in TIMER_DELAYS_MS if self.is_newer else ():
                body = f"{name}-timer-{delay_ms}-{number}"
                self.due_ms[body] = now_ms() + delay_ms
                send(server, body, number, {"TIMER_DELIVER_MS": str(self.due_ms[body])})
            for kind in ("ended", "open"):
                body = f"{name}-{kind}-{number}"
                self.halves[body] = begin(server, body, {"DELAY": str(LEVEL)})
        for body in [body for body in self.halves if f"{name}-ended" in body]:
            self.end(server, body)

    def add_schedule(self, server: Server) -> None:
        """Create a schedule of every 3 s by a message; an outage skips what is older than 2 min."""
        properties = {"NAME": "every", "EVERY_MS": str(SCHEDULE_MS), "CATCH_UP_MS": "120000"}
        send(
            server,
            SCHEDULE_BODY,
            0,
            {f"DUEMQ_SCHEDULE_{name}": text for name, text in properties.items()},
        )

    def end(self, server: Server, body: str) -> None:
        """Commit a transaction, whose message is then due at its level; roll back each third."""
        is_committed = int(body.rsplit("-", 1)[1]) % 3 != 0
        verdict = {"commitOrRollback": COMMIT if is_committed else ROLLBACK}
        sent_ms = now_ms()
        response = call(server.broker_port, END_TRANSACTION, self.halves.pop(body) | verdict)
        assert response.code == SUCCESS, f"{body}: {response.code} {response.remark}"
        if is_committed:
            self.due_ms[body] = sent_ms + LEVEL_MS[LEVEL]

    def end_all(self, server: Server) -> None:
        """End the open transactions."""
        for body in list(self.halves):
            self.end(server, body)

    def wait(self, server: Server) -> None:
        """Wait until each message is delivered."""
        until(
            lambda: self.due_ms.keys() <= {record.body.decode() for record in pull_topic(server)},
            seconds=DELIVERED_S,
            what="everything is delivered",
            poll_s=0.5,
        )

    def check(self, server: Server, *, is_gapless: bool = True) -> None:
        """Check that each message was delivered once, and none early.

        Args:
            is_gapless: Whether no occurrence of the schedule may have been skipped.
        """
        records = pull_topic(server)
        occurrences = [record for record in records if record.body == SCHEDULE_BODY.encode()]
        others = [record for record in records if record.body != SCHEDULE_BODY.encode()]
        counts = Counter(record.body.decode() for record in others)
        assert counts == Counter(self.due_ms.keys()), {
            "missing": self.due_ms.keys() - counts.keys(),
            "not to be delivered": counts.keys() - self.due_ms.keys(),
            "repeated": [body for body, count in counts.items() if count > 1],
        }
        early = [
            record.body for record in others if record.store_ms < self.due_ms[record.body.decode()]
        ]
        assert not early
        if self.is_newer:
            check_occurrences(occurrences, is_gapless=is_gapless)

    def to_json(self) -> str:
        """Return a text from which `from_json` makes the same contents."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the contents that `to_json` wrote."""
        return cls(**json.loads(text))


def check_occurrences(records: list[Record], *, is_gapless: bool) -> None:
    """Check that each planned time was delivered once, none early, and none is missing."""
    planned = sorted(int(record.properties["DUEMQ_SCHEDULE_TIME"]) for record in records)
    assert len(planned) > 1
    assert len(planned) == len(set(planned))
    if is_gapless:
        assert planned == list(range(planned[0], planned[-1] + 1, SCHEDULE_MS))
    assert all(
        record.store_ms >= int(record.properties["DUEMQ_SCHEDULE_TIME"]) for record in records
    )


assert COUNT <= QUEUE_COUNT, "each number is a queue"
