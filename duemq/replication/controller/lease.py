"""Fencing lease: how long a master may acknowledge without another word from the controller.

What the controller does (DefaultBrokerHeartbeatManager, DefaultElectPolicy, ReplicasInfoManager):

    heartbeat (904) of a member      stored with its time of arrival; answered with success
    no heartbeat for `limit_ms`      the member is not alive: scanNotActiveBroker elects another
    the channel of a member closes   the member is not alive at once: another is elected in ms
    mqadmin electMaster              another is elected although the master is alive
    every election                   masterEpoch + 1; the master is of the sync state set (unless
                                     enableElectUncleanMaster); its new set is itself alone

Rule 1, time. The controller counts the limit from the arrival of a heartbeat, this side from the
instant before it was sent, which is earlier. So until `sent + limit`, the controller elects no
other member for want of heartbeats. A margin covers clocks of different rates: 10 %, as a time
daemon may slew a clock by 8.3 %. The clock is CLOCK_BOOTTIME: it counts while the machine sleeps,
and SIGSTOP does not stop it. A process that was paused finds the lease expired at its next check.

Rule 2, elections that do not wait. With each heartbeat the master asks the controllers' leader for
the group (1004). The lease ends `limit` after the last heartbeat or the last question that was
answered in its favour was sent, whichever is earlier, and at once when
    - the connection to the leader is lost: the controller may have elected another already. After
      that only answers to questions of a new connection count;
    - any answer names a newer epoch (a notification, 1008, is a reason to ask).
The lease of a former master may still be valid
    - between such an election and the next answer: a heartbeat period and the time of one call;
    - when the controller's wall clock, by which it counts, jumps forward;
    - when a leader that was cut off from its peers still answers, or a new leader begins that
      received no heartbeats itself;
    - with controllerType=jRaft, which answers a heartbeat with success before it is stored;
    - when a hypervisor stops the clocks of a paused machine.
Rule 3 covers these.

Rule 3, the sync state set. The lease alone is not a proof; this is: a master acknowledges, and
shows to consumers, only bytes that every id of `GroupMember.required_ids` has. These contain the
controller's sync state set at every instant, as a changed set is required from before the request
(1001) until its outcome is known. A member that is elected is of that set, therefore has every byte
that was acknowledged, and takes no more from the former master once it is master itself: from then
on no byte of the former master reaches all required ids, whatever its lease is. A paused master
that sends an answer which it decided before the pause sends one that is true.

With fewer acknowledgements than that (`inSyncReplicas` below the size of the set, and not
`allAckInSyncStateSet`) and with unclean elections, rules 1 and 2 are all there is: the operator has
chosen to lose messages with a machine, and the lease bounds the time in which two masters accept.

Source: DefaultBrokerHeartbeatManager, BrokerHousekeepingService, ControllerManager
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MARGIN_DIVISOR: Final = 10


@dataclass(frozen=True, slots=True)
class Ticket:
    """A question to the controller that may extend the lease.

    Attributes:
        sent_ms: Steady time before it was sent.
        revocations: Count of revocations before it was sent.
    """

    sent_ms: int
    revocations: int


class Lease:
    """The lease of one member. Times are of `Clock.steady_ms`.

    Args:
        limit_ms: Time limit of heartbeats, as the controller knows it.

    Attributes:
        epoch: Epoch that is confirmed; 0: none.
        valid_until_ms: End of the lease.
        revocations: How often it was revoked.
    """

    def __init__(self, limit_ms: int) -> None:
        self.length_ms = limit_ms - limit_ms // MARGIN_DIVISOR
        self.epoch = 0
        self.valid_until_ms = 0
        self.revocations = 0
        self._beat_ms: int | None = None
        self._confirmed_ms: int | None = None

    def is_valid(self, epoch: int, now_ms: int) -> bool:
        """Return whether the master of `epoch` may acknowledge and deliver now."""
        return epoch == self.epoch and now_ms < self.valid_until_ms

    def ticket(self, now_ms: int) -> Ticket:
        """Return the ticket of a question that is sent now."""
        return Ticket(now_ms, self.revocations)

    def heartbeat_answered(self, ticket: Ticket) -> None:
        """Note that the leader has answered a heartbeat."""
        if ticket.revocations == self.revocations:
            self._beat_ms = max(ticket.sent_ms, self._beat_ms or 0)
            self._extend()

    def epoch_confirmed(self, epoch: int, ticket: Ticket) -> None:
        """Note that the leader has answered that this member is the master of `epoch`."""
        if ticket.revocations != self.revocations or epoch < self.epoch:
            return
        if epoch > self.epoch:
            self.epoch, self._confirmed_ms = epoch, None
        self._confirmed_ms = max(ticket.sent_ms, self._confirmed_ms or 0)
        self._extend()

    def revoke(self) -> None:
        """End the lease; only questions that are sent from now on extend it again."""
        self.epoch, self.valid_until_ms = 0, 0
        self.revocations += 1
        self._beat_ms = self._confirmed_ms = None

    def _extend(self) -> None:
        if self._beat_ms is not None and self._confirmed_ms is not None:
            self.valid_until_ms = min(self._beat_ms, self._confirmed_ms) + self.length_ms
