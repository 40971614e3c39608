"""Subscription of a pull: that of the group's heartbeats, or the request's own."""

from __future__ import annotations

from dataclasses import replace

from duemq.filters import FilterError
from duemq.pull.pull_plan import PullRequest
from duemq.registry.clients import ClientTable
from duemq.registry.groups import GroupConfig
from duemq.registry.subscriptions import ALL, TAG, ExpressionError, Subscription, parse_expression
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response

FORBIDDEN_BROKER, FORBIDDEN_GROUP, FORBIDDEN_TOPIC, FORBIDDEN_BROADCAST = 1, 2, 3, 4
MATCH_ALL_CACHE_MAX = 1_024  # cached subscriptions


class Forbidden(RequestError):
    """Refusal of a pull.

    Attributes:
        forbidden_type: Apache's number of the failed check, FORBIDDEN_*.
    """

    def __init__(self, forbidden_type: int, remark: str) -> None:
        self.forbidden_type = forbidden_type
        super().__init__(ResponseCode.NO_PERMISSION, remark)

    def response(self) -> Response:
        """Return the response to the refused pull."""
        return Response(self.code, self.remark, {"forbiddenType": str(self.forbidden_type)})


class PullSubscriptions:
    """Subscriptions of pulls, by the heartbeats of their groups."""

    def __init__(self, clients: ClientTable) -> None:
        self._clients = clients
        self._match_all_cache: dict[tuple[str, int], Subscription] = {}

    def of_pull(self, request: Request, pull: PullRequest, group: GroupConfig) -> Subscription:
        """Return the subscription of a pull.

        Raises:
            RequestError: There is none, it is not the latest, or its filter is invalid.
        """
        if pull.has(PullRequest.SUBSCRIPTION):
            return self._request_subscription(request, pull)
        return self._known_subscription(pull, group)

    def _known_subscription(self, pull: PullRequest, group: GroupConfig) -> Subscription:
        members = self._clients.consumer_group(pull.group)
        if members is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist, group: {pull.group}",
            )
        if members.broadcasting and not group.broadcast_enable:
            raise Forbidden(
                FORBIDDEN_BROADCAST, f"group {pull.group} may not consume by broadcasting"
            )
        subscription = members.subscriptions.get(pull.topic)
        if subscription is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist, group: {pull.group} topic: {pull.topic}",
            )
        if subscription.version < pull.version:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return subscription if subscription.is_tag else self._compiled(subscription)

    def _compiled(self, subscription: Subscription) -> Subscription:
        """Return a subscription with its compiled filter."""
        try:
            compiled = self._clients.filters.compile(subscription.kind, subscription.expression)
        except FilterError as fault:
            raise RequestError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist! Your expression may be wrong!",
            ) from fault
        return replace(subscription, filter=compiled)

    def _request_subscription(self, request: Request, pull: PullRequest) -> Subscription:
        expression, kind = request.fields.get("subscription"), request.fields.get("expressionType")
        matches_all = expression == ALL and kind in (None, TAG)
        cached = self._match_all_cache.get((pull.topic, pull.version)) if matches_all else None
        if cached is not None:
            return cached
        try:
            parsed = parse_expression(pull.topic, expression, kind, pull.version)
            if not parsed.is_tag:
                compiled = self._clients.filters.compile(parsed.kind, parsed.expression)
                parsed = replace(parsed, filter=compiled)
        except (ExpressionError, FilterError) as fault:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {fault}",
            ) from fault
        if matches_all:
            if len(self._match_all_cache) >= MATCH_ALL_CACHE_MAX:
                self._match_all_cache.clear()
            self._match_all_cache[pull.topic, pull.version] = parsed
        return parsed
