"""Tables of offsets in requests to consumers."""

from __future__ import annotations

import pytest

from duemq.client.consumer_requests import offset_table
from duemq.client.message import MessageQueue

FORMS = [
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:100}}',
    b'{"offsetTable":[{"brokerName":"b","offset":100,"queueId":0,"topic":"T"}]}',
]


@pytest.mark.parametrize("body", FORMS, ids=["java", "cpp"])
def test_both_forms_are_read(body: bytes) -> None:
    assert offset_table(body) == {MessageQueue("T", "b", 0): 100}


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'{"offsetTable":5}', b'{"offsetTable":{"x":1}}', b'{"offsetTable":[1]}', b"["],
)
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        offset_table(body)
