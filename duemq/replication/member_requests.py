"""Requests that controllers and other members send to this broker, and the view of its role."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from duemq.replication.ha_address import HaAddressProcessor
from duemq.replication.membership import Membership
from message_store.store import MessageStore

if TYPE_CHECKING:
    from duemq.replication.controller.notifications import ControllerNotifications

View = Callable[[], dict[str, object]]


def member_requests(
    store: MessageStore,
    member: Membership | None,
    address: str,
    ha_address: str,
    *,
    is_master: bool,
    registered_id: int,
) -> HaAddressProcessor | ControllerNotifications:
    """Return the processor of requests that controllers and other members send.

    Args:
        member: The membership of this broker; None: it is not in controller mode.
        address, ha_address: `host:port` of this broker for clients and for replicas.
        registered_id: Id with which this broker registers with name servers.
    """
    addresses = HaAddressProcessor(
        address, ha_address, lambda: store.max_offset, is_master=is_master
    )
    if member is None:
        return addresses
    from duemq.replication.controller.notifications import ControllerNotifications

    return ControllerNotifications(
        member.service.group,
        notify=member.service.notify,
        epochs=lambda: member.epochs.epochs.entries,
        max_offset=lambda: store.max_offset,
        addresses=addresses,
        broker_id=lambda: registered_id,
    )


def with_group(of_role: View, member: Membership | None) -> View:
    """Return a view of the broker's role; in controller mode it includes the state of the group."""
    if member is None:
        return of_role
    return lambda: {**of_role(), **member.service.view()}
