"""Requests for features of Apache's broker that DueMQ does not have.

A request that cannot have its effect is refused with the reason. A request that has nothing to do
without the feature gets the response of an Apache broker without it.

AdminBrokerProcessor
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from duemq.registry.topic_config import NO_LITE_TOPICS
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Request, RequestHandler, Response

NO_COLD_DATA: Final = "reads of old messages are not limited per group"
LITE_CODES: Final = tuple(
    RequestCode(code)
    for code in range(RequestCode.POP_LITE_MESSAGE, RequestCode.TRIGGER_LITE_DISPATCH + 1)
)
REASONS: Final = {
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "queues are not mapped to other brokers; "
    "create the topic with updateTopic",
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: "reads cannot be forbidden per group and topic; "
    "stop all reads of the group with updateSubGroup, or deny the topic to its account",
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: "consume queues are files, not in RocksDB; "
    "compare them with the log by `duemq store verify`",
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: NO_COLD_DATA,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: NO_COLD_DATA,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: NO_COLD_DATA,
    RequestCode.SET_COMMITLOG_READ_MODE: "the read-ahead of the log adapts to the reads",
    RequestCode.SWITCH_TIMER_ENGINE: "timers are in one engine, with files of Apache's wheel",
    **dict.fromkeys(LITE_CODES, NO_LITE_TOPICS),
}
"""Refused codes and reasons."""
NO_ACCOUNTS: Final = "accounts are switched off; set authenticationEnabled=true"
ACCOUNT_CODES: Final = range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1)
REPLICA_REASON: Final = "a replica takes the offset from the frames of its master"


class AbsentFeatures:
    """Handler of codes for absent features.

    It handles 355, 908, 200056 and, without a controller, 1007; it refuses the codes of `REASONS`
    and, without accounts, 3001 to 3010.

    Args:
        save: Writes changed tables of topics, groups and offsets.
        is_master: Whether this broker is a master.
        has_controller, has_accounts: Whether other processors handle 1007, and 3001 to 3010.
    """

    def __init__(
        self,
        save: Callable[[], Awaitable[None]],
        *,
        is_master: bool,
        has_controller: bool,
        has_accounts: bool,
    ) -> None:
        self._save, self._is_master, self._has_controller = save, is_master, has_controller
        self._reasons = {int(code): reason for code, reason in REASONS.items()}
        if not has_accounts:
            self._reasons |= dict.fromkeys(ACCOUNT_CODES, NO_ACCOUNTS)

    def handlers(self) -> dict[int, RequestHandler]:
        """Return the handlers by request code."""
        handlers: dict[int, RequestHandler] = {
            RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: self.export_tables,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.reset_master_flush_offset,
            RequestCode.POP_ROLLBACK: self.roll_back_pop,
        }
        if not self._has_controller:
            handlers[RequestCode.GET_BROKER_EPOCH_CACHE] = self.epochs
        return handlers | dict.fromkeys(self._reasons, self.refuse)

    async def refuse(self, request: Request) -> Response:
        """Refuse a request with its reason."""
        return refused(request.code, self._reasons[request.code])

    async def export_tables(self, request: Request) -> Response:
        """Write the tables, whose files already have the requested format."""
        await self._save()
        return Response(remark="export done.")

    async def reset_master_flush_offset(self, request: Request) -> Response:
        """Do nothing on a master, as Apache does; refuse on a replica."""
        return Response() if self._is_master else refused(request.code, REPLICA_REASON)

    async def roll_back_pop(self, request: Request) -> Response:
        """Do nothing: checkpoints are already in the log, where the request would move them."""
        return Response()

    async def epochs(self, request: Request) -> Response:
        """Report that there is no controller."""
        return Response(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")


def refused(code: int, reason: str) -> Response:
    """Return the response to an unsupported request."""
    name = RequestCode(code).name
    text = f"request type {code} ({name}) is not supported by this broker: {reason}"
    return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
