"""Status codes of v5 calls, and their mapping from remoting response codes.

Source: ResponseBuilder, GrpcProxyException of Apache's proxy 5.3.3
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from duemq.v5.protocol import definition as v2
from duemq_common.codes import ResponseCode
from duemq_common.request import Response

_CODE_OF_RESPONSE: Final[Mapping[int, v2.Code]] = {
    ResponseCode.SUCCESS: v2.OK,
    ResponseCode.SYSTEM_BUSY: v2.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: v2.NOT_IMPLEMENTED,
    ResponseCode.TOPIC_NOT_EXIST: v2.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: v2.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.FLUSH_DISK_TIMEOUT: v2.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: v2.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: v2.HA_NOT_AVAILABLE,
}


class V5Error(Exception):
    """Error status of a call.

    Attributes:
        code: Status code.
        text: Message of the status.
    """

    def __init__(self, code: v2.Code, text: str) -> None:
        self.code, self.text = code, text
        super().__init__(f"{v2.Code.Name(code)}: {text}")


class HandleEnded(V5Error):
    """Error status of a receipt handle that stays invalid: its message is visible, or is gone."""


def code_of(response: Response) -> v2.Code:
    """Return the status code for a remoting response."""
    return _CODE_OF_RESPONSE.get(response.code, v2.INTERNAL_SERVER_ERROR)


def status_of(response: Response) -> v2.Status:
    """Return the status for a remoting response."""
    code = code_of(response)
    return v2.Status(code=code, message=response.remark or v2.Code.Name(code))


def successful(response: Response) -> Response:
    """Return a successful response.

    Raises:
        V5Error: The response is an error.
    """
    if response.code != ResponseCode.SUCCESS:
        raise V5Error(code_of(response), response.remark or f"response code {response.code}")
    return response


def status(code: v2.Code, text: str = "") -> v2.Status:
    """Return a status; its message defaults to the name of the code."""
    return v2.Status(code=code, message=text or v2.Code.Name(code))


def status_of_all(statuses: Iterable[v2.Status]) -> v2.Status:
    """Return the status of a call with several results: the common code, or MULTIPLE_RESULTS."""
    codes = {each.code for each in statuses}
    if not codes:
        return status(v2.INTERNAL_SERVER_ERROR, "there are no results")
    return status(codes.pop() if len(codes) == 1 else v2.MULTIPLE_RESULTS)
