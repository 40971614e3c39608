"""Fencing lease: time for which a master may acknowledge without a response from the controller.

Controller (DefaultBrokerHeartbeatManager, DefaultElectPolicy, ReplicasInfoManager):

    heartbeat (904) of a member      stored with its time of arrival; the response is success
    no heartbeat for `limit_ms`      the member is dead: scanNotActiveBroker elects another
    the channel of a member closes   the member is dead at once: another is elected within ms
    mqadmin electMaster              another is elected although the master is alive
    every election                   masterEpoch + 1; the master is elected from the sync state set
                                     (unless enableElectUncleanMaster), and is then its only member

Rule 1, time. The controller counts the limit from the arrival of a heartbeat, the lease from the
instant before it was sent, which is earlier. Until `sent + limit`, the controller therefore elects
no other member for lack of heartbeats. A margin of 10 % covers clocks of different rates: a time
daemon may slew a clock by 8.3 %. The clock is CLOCK_BOOTTIME, which advances while the machine is
suspended and while SIGSTOP stops the process. A paused process finds the lease expired at its next
check.

Rule 2, elections without a wait. With each heartbeat, the master requests the view of the group
(1004) from the controllers' leader. The lease ends `limit` after the last successful heartbeat was
sent, or after the last request with a response that confirmed this master was sent, whichever is
earlier. It ends at once when
    - the connection to the leader is lost: the controller may already have elected another. After
      that only responses to requests on a new connection extend the lease;
    - any response has a newer epoch (a notification, 1008, only triggers a request).
The lease of a former master may still be valid
    - between such an election and the next response: a heartbeat period and the time of one call;
    - when the controller's wall clock, by which it counts, jumps forward;
    - when a leader that is partitioned from its peers still responds, or a new leader has received
      no heartbeats itself;
    - with controllerType=jRaft, which reports success before it stores a heartbeat;
    - when a hypervisor stops the clocks of a paused machine.
Rule 3 covers these cases.

Rule 3, the sync state set. The lease alone does not prove safety; this rule does: a master
acknowledges, and makes visible to consumers, only bytes that every id of `GroupMember.required_ids`
has. These ids include the controller's sync state set at every instant, because the ids of a new
set are required from before the request (1001) until its outcome is known. The controller elects a
member of that set. This member has every acknowledged byte, and as master accepts no bytes from the
former master: no further byte of the former master reaches all required ids, even if its lease is
valid. A response that a paused master decided before its pause and sends after it is still correct.

If fewer acknowledgements are required (`inSyncReplicas` below the size of the set, and not
`allAckInSyncStateSet`), or elections may be unclean, only rules 1 and 2 apply: the operator accepts
the loss of messages with a machine, and the lease bounds the time in which two masters accept
messages.

Source: DefaultBrokerHeartbeatManager, BrokerHousekeepingService, ControllerManager
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MARGIN_DIVISOR: Final = 10


@dataclass(frozen=True, slots=True)
class Ticket:
    """State before a request whose response may extend the lease.

    Attributes:
        sent_ms: Steady time before the request was sent, in ms.
        revocations: Number of revocations before the request was sent.
    """

    sent_ms: int
    revocations: int


class Lease:
    """The lease of one member. Times are of `Clock.steady_ms`.

    Args:
        limit_ms: Time limit of heartbeats at the controller, in ms.

    Attributes:
        length_ms: Duration of the lease: `limit_ms` without the margin.
        epoch: Confirmed master epoch; 0: none.
        valid_until_ms: End of the lease, in steady ms.
        revocations: Number of revocations.
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
        """Return the ticket of a request that is sent now."""
        return Ticket(now_ms, self.revocations)

    def heartbeat_succeeded(self, ticket: Ticket) -> None:
        """Extend the lease after the leader's response to a heartbeat."""
        if ticket.revocations == self.revocations:
            self._beat_ms = max(ticket.sent_ms, self._beat_ms or 0)
            self._extend()

    def epoch_confirmed(self, epoch: int, ticket: Ticket) -> None:
        """Extend the lease after the leader's response that this member is master of `epoch`."""
        if ticket.revocations != self.revocations or epoch < self.epoch:
            return
        if epoch > self.epoch:
            self.epoch, self._confirmed_ms = epoch, None
        self._confirmed_ms = max(ticket.sent_ms, self._confirmed_ms or 0)
        self._extend()

    def revoke(self) -> None:
        """End the lease; only responses to requests that are sent from now on extend it again."""
        self.epoch, self.valid_until_ms = 0, 0
        self.revocations += 1
        self._beat_ms = self._confirmed_ms = None

    def _extend(self) -> None:
        if self._beat_ms is not None and self._confirmed_ms is not None:
            self.valid_until_ms = min(self._beat_ms, self._confirmed_ms) + self.length_ms
