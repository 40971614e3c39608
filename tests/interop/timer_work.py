"""Requests and checks with timers for tests in which DueMQ and Apache use one store in turn.

A `TimerLedger` records sent timers, their due times and recalls, and compares them with the
messages that can be pulled at the end, whichever broker delivered them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.interop import store_work
from tests.interop.store_work import QUEUE_COUNT, TOPIC, message_count, pull_topic, send
from tests.support.remoting_requests import SUCCESS, call
from tests.support.server import Server
from tests.support.wait_until import now_ms, until

RECALL = 370
PRECISION_MS = 1_000
DELIVERED_S = 120.0
# A window of 5 s: whatever is due later than that rolls on its way.
KEYS = store_work.KEYS | {
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "timerRollWindowSlot": "5",
    "timerFlushIntervalMs": "1000",  # Apache's progress after a kill
    "mappedFileSizeTimerLog": "2600",
    "maxMessageSize": str(16 << 10),
}


@dataclass
class TimerLedger:
    """Timers sent to `TOPIC`: due time and recall handle by body, and the recalled bodies."""

    due_ms: dict[str, int] = field(default_factory=dict)
    handles: dict[str, str] = field(default_factory=dict)
    recalled: set[str] = field(default_factory=set)

    def send(self, server: Server, name: str, count: int, *, delay_ms: int, kind: str) -> None:
        """Send bodies `name-0`, `name-1`, ..., a few milliseconds apart.

        Args:
            kind: Property that contains the due time or the delay.
        """
        for number in range(count):
            body, now = f"{name}-{number}", now_ms()
            due_ms = now + delay_ms + 7 * number
            value = {"TIMER_DELIVER_MS": due_ms, "TIMER_DELAY_MS": due_ms - now}
            value["TIMER_DELAY_SEC"] = delay_ms // 1_000
            fields = send(server, body, number % QUEUE_COUNT, {kind: str(value[kind])})
            # a message that was due when the broker read it has no handle
            if "recallHandle" in fields or now_ms() < due_ms:
                self.handles[body] = fields["recallHandle"]
            self.due_ms[body] = now + delay_ms if kind == "TIMER_DELAY_SEC" else due_ms

    def recall(self, server: Server, bodies: Sequence[str]) -> None:
        """Recall messages by their handles; check that the broker responds with success."""
        for body in bodies:
            fields = {"producerGroup": "P", "topic": TOPIC, "recallHandle": self.handles[body]}
            response = call(server.broker_port, RECALL, fields)
            assert response.code == SUCCESS, f"recall {body}: {response.code} {response.remark}"
            self.recalled.add(body)

    def named(self, name: str) -> list[str]:
        """Return the bodies that were sent with this name."""
        return [body for body in self.due_ms if body.rsplit("-", 1)[0] == name]

    @property
    def expected(self) -> set[str]:
        """The bodies that must be delivered: all but the recalled ones."""
        return self.due_ms.keys() - self.recalled

    def delivered_counts(self, server: Server) -> Counter[str]:
        """Return the number of deliveries of each body."""
        return Counter(record.body.decode() for record in pull_topic(server))

    def wait(self, server: Server, bodies: Sequence[str] = ()) -> None:
        """Wait until these bodies are delivered; default: all but the recalled ones."""
        wanted = set(bodies or self.expected)
        until(
            lambda: (
                message_count(server) >= len(wanted)
                and wanted <= self.delivered_counts(server).keys()
            ),
            seconds=DELIVERED_S,
            what=f"{len(wanted)} timers delivered",
            poll_s=store_work.POLL_S,
        )

    def wait_past(self) -> None:
        """Wait until all timers are due, and Apache had time to deliver them again."""
        end_ms = max(self.due_ms.values()) + 3 * PRECISION_MS
        until(lambda: now_ms() > end_ms, seconds=DELIVERED_S, what="all due", poll_s=0.2)

    def check(self, server: Server, *, may_repeat: Sequence[str] = ()) -> None:
        """Check that all timers but recalled ones were delivered once, not early, without markers.

        Args:
            may_repeat: Bodies whose delivery a killed broker may not have recorded.
        """
        counts = self.delivered_counts(server)
        assert counts.keys() == self.expected
        assert {body for body, count in counts.items() if count > 1} <= set(may_repeat)
        for record in pull_topic(server):
            body = record.body.decode()
            assert record.store_ms >= self.due_ms[body], f"{body} was delivered early"
