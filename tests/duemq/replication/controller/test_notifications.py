"""What a member answers to controllers, other members and mqadmin."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from duemq.replication.controller.notifications import ControllerNotifications
from duemq.replication.ha_address import HaAddressProcessor
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from tests.support.group_host import GROUP


class NotifiedMember:
    """Handlers with values of their own, and how often they notified."""

    def __init__(self, epochs: Sequence[tuple[int, int]] = ()) -> None:
        self.count = 0
        self.handlers = ControllerNotifications(
            GROUP,
            notify=self.note,
            epochs=lambda: epochs,
            max_offset=lambda: 900,
            addresses=HaAddressProcessor("h:1", "h:2", lambda: 900, is_master=True),
            broker_id=lambda: 2,
        ).handlers()

    def note(self) -> None:
        self.count += 1

    def call(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Response:
        response = self.handlers[code](Request(code, fields or {}, body))
        assert isinstance(response, Response)
        return response


@pytest.mark.parametrize("body", [b"", b"\xff{", b'{"syncStateSet":[1]}'])
def test_a_notification_is_a_reason_to_ask_and_nothing_else(body: bytes) -> None:
    requested = NotifiedMember()
    forged = {"masterBrokerId": "1", "masterEpoch": "999", "masterAddress": "evil:1"}
    assert requested.call(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, forged, body).code == 0
    assert requested.count == 1


@pytest.mark.parametrize(
    ("epochs", "entries"),
    [
        ([], []),
        ([(3, 0)], [(3, 0, (1 << 63) - 1)]),
        ([(3, 0), (5, 400)], [(3, 0, 400), (5, 400, (1 << 63) - 1)]),
    ],
)
def test_epochs(epochs: list[tuple[int, int]], entries: list[tuple[int, int, int]]) -> None:
    response = NotifiedMember(epochs).call(RequestCode.GET_BROKER_EPOCH_CACHE)
    assert isinstance(response.body, bytes)
    assert json.loads(response.body) == {
        "clusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 2,
        "maxOffset": 900,
        "epochList": [
            {"epoch": epoch, "startOffset": start, "endOffset": end}
            for epoch, start, end in entries
        ],
    }


def test_a_member_answers_for_its_replication_address() -> None:
    fields = NotifiedMember().call(RequestCode.EXCHANGE_BROKER_HA_INFO).fields
    assert fields is not None
    assert fields["masterHaAddress"] == "h:2"
