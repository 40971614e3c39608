"""Templates of pop frames: the kernel reads what the codec decodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from duemq.net import codec
from duemq.pop.kernels.matching_frames import read_matching
from duemq.pop.pop import PopRequest
from duemq.pop.pop_queues import PopTarget
from duemq.pop.templates.pop_templates import COLUMNS, PopTemplate
from duemq.registry.subscriptions import Subscription
from duemq_common.codes import RequestCode
from duemq_common.errors import FrameError
from duemq_common.request import Request
from tests.duemq.pop.templates.test_ack_templates import decoded, frame

JAVA = (
    b'{"code":200050,"extFields":{"consumerGroup":"g","topic":"T","queueId":"$queue",'
    b'"maxMsgNums":"32","invisibleTime":"60000","pollTime":"15000","bornTime":"1700000000123",'
    b'"initMode":"0"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
GO = (
    b'{"code":200050,"language":"GO","version":317,"opaque":7,"flag":0,"remark":"",'
    b'"extFields":{"bornTime":"1700000000123","consumerGroup":"g","initMode":"0",'
    b'"invisibleTime":"60000","maxMsgNums":"32","pollTime":"15000","queueId":"$queue",'
    b'"topic":"T"}}'
)
FORMS = pytest.mark.parametrize("form", [JAVA, GO], ids=["java", "go"])
QUEUES = pytest.mark.parametrize("queue", [b"-1", b"3"], ids=["all", "one"])


def header_of(form: bytes, queue: bytes = b"-1") -> bytes:
    return form.replace(b"$queue", queue)


def template_of(header: bytes) -> PopTemplate | None:
    request = decoded(frame(header))
    target = PopTarget("g", "T", int(request.fields["queueId"]))
    arguments = PopRequest(target, 32, 60_000, 0, 0, Subscription("T"))
    return PopTemplate.of(frame(header), request, arguments)


def read(template: PopTemplate, data: bytes) -> Request | None:
    """Return the request that the kernel reads from a frame; None: the frame does not match."""
    numbers, ends = np.zeros((1, COLUMNS), np.int64), np.zeros(1, np.int64)
    buffer = np.frombuffer(data, np.uint8).copy()
    if not read_matching(buffer, 0, buffer.size, template.parts, numbers, ends):
        return None
    assert ends[0] == len(data)
    opaque, born_ms, queue_id = numbers[0].tolist()
    return template.request_of(opaque, born_ms, template.queue_id(queue_id))


@FORMS
@QUEUES
def test_a_template_reads_the_frames_of_a_client(form: bytes, queue: bytes) -> None:
    template = template_of(header_of(form, queue))
    assert template is not None
    assert template.poll_ms == 15_000
    for opaque, born, other in ((b"0", b"0", queue), (b"2147483647", b"9" * 18, b"15")):
        header = header_of(form, other).replace(b'"opaque":7', b'"opaque":' + opaque)
        data = frame(header.replace(b"1700000000123", born))
        expected = decoded(data) if queue == other or queue == b"3" else None
        assert read(template, data) == expected


@FORMS
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'"maxMsgNums":"32"', b'"maxMsgNums":"31"', id="number of messages"),
        pytest.param(b'"invisibleTime":"60000"', b'"invisibleTime":"1"', id="invisible time"),
        pytest.param(b'"topic":"T"', b'"topic":"U"', id="topic"),
        pytest.param(b'"initMode":"0"', b'"initMode":"0","order":"true"', id="orderly"),
        pytest.param(b'"flag":0', b'"flag":2', id="one-way"),
        pytest.param(b'"queueId":"-1"', b'"queueId":"3"', id="one queue in place of all"),
        pytest.param(b"200050", b"200051", id="code"),
    ],
)
def test_frames_with_other_arguments_do_not_match(form: bytes, old: bytes, new: bytes) -> None:
    header = header_of(form)
    template = template_of(header)
    assert template is not None
    assert old in header
    assert read(template, frame(header.replace(old, new))) is None


@FORMS
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'"bornTime":"1700000000123",', b"", id="no birth time"),
        pytest.param(b'"bornTime":"17', b'"bornTime":"017', id="leading zero"),
        pytest.param(b'"bornTime"', b'"born\\u0054ime"', id="escaped name"),
        pytest.param(b'"topic":"T"', b'"topic":"T","bornTime":"1"', id="twice"),
        pytest.param(b'"topic":"T"', b'"topic":"T","opaque":"1"', id="opaque as a field"),
    ],
)
def test_frames_of_another_form_have_no_template(form: bytes, old: bytes, new: bytes) -> None:
    header = header_of(form)
    assert old in header
    assert template_of(header.replace(old, new)) is None


@given(st.sampled_from([JAVA, GO]), st.sampled_from([b"-1", b"3"]), st.data())
def test_a_template_never_reads_another_request_than_the_codec(
    form: bytes, queue: bytes, data: st.DataObject
) -> None:
    header = header_of(form, queue)
    template = template_of(header)
    assert template is not None
    for _ in range(4):
        at = data.draw(st.integers(0, len(header) - 1))
        new = data.draw(
            st.sampled_from([b"1", b"0", b"55", b"", b"9" * 11, b"-", b'"', b"x", b"\\"])
        )
        changed = frame(header[:at] + new + header[at + 1 :])
        found = read(template, changed)
        if found is None:
            continue
        try:
            assert found == decoded(changed)
        except FrameError:
            assume(False)


def test_frames_of_the_codec_have_a_template() -> None:
    request = decoded(frame(header_of(JAVA)))
    assert request.code == RequestCode.POP_MESSAGE
    data = codec.encode_request(request)
    arguments = PopRequest(PopTarget("g", "T", -1), 32, 60_000, 0, 0, Subscription("T"))
    assert PopTemplate.of(data, request, arguments) is not None
