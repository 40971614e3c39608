"""Requests to a member of a group, from controllers, other members and mqadmin.

    1008 the role has changed     triggers a request to the controller; its content is ignored
    1007 epochs of the log        mqadmin getBrokerEpoch
    906  replication address      of a master, for its replicas

Source: AdminBrokerProcessor
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from duemq.net import wire_json
from duemq.net.dispatcher import Handler
from duemq.net.fields import LONG_MAX
from duemq.replication.controller.requests import GroupName
from duemq.replication.ha_address import HaAddressProcessor
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response


class ControllerNotifications:
    """Handlers of a member.

    Args:
        group: The group.
        notify: Triggers a request for the view of the group (`GroupService.notify`).
        epochs: Returns (epoch, start offset) of each epoch of the log, oldest first.
        max_offset: Returns the end of the log.
        addresses: Handler of 906.
        broker_id: Returns the id with which this broker registers with name servers; 0: a master.
    """

    def __init__(
        self,
        group: GroupName,
        *,
        notify: Callable[[], None],
        epochs: Callable[[], Sequence[tuple[int, int]]],
        max_offset: Callable[[], int],
        addresses: HaAddressProcessor,
        broker_id: Callable[[], int],
    ) -> None:
        self._group, self._notify, self._epochs = group, notify, epochs
        self._max_offset, self._addresses, self._broker_id = max_offset, addresses, broker_id

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed,
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epoch_cache,
            **self._addresses.handlers(),
        }

    def role_changed(self, request: Request) -> Response:
        """Handle 1008."""
        self._notify()
        return Response()

    def epoch_cache(self, request: Request) -> Response:
        """Return the epochs of the log (1007); the end of the last epoch is `LONG_MAX`."""
        epochs = self._epochs()
        ends = [start for _, start in epochs[1:]] + [LONG_MAX]
        entries = (
            [
                {"epoch": epoch, "startOffset": start, "endOffset": end}
                for (epoch, start), end in zip(epochs, ends, strict=True)
            ]
            if epochs
            else []
        )
        value = {
            "clusterName": self._group.cluster,
            "brokerName": self._group.broker_name,
            "brokerId": self._broker_id(),
            "maxOffset": self._max_offset(),
            "epochList": entries,
        }
        return Response(body=wire_json.encode(value))
