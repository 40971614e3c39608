"""Rebalance by the broker (400), and the request mode of a group: pull or pop (401, 402).

    queues of a topic on all brokers + members of a group --strategy--> queues of one member

Source: QueryAssignmentProcessor
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from duemq.configuration.config import BrokerConfig
from duemq.net import wire_json
from duemq.net.dispatcher import Handler
from duemq.pop.allocation import STRATEGIES, AssignedQueue, allocate, allocate_for_pop
from duemq.pop.request_modes import POP, PULL, RequestMode, RequestModes
from duemq.registry.clients import ClientTable
from duemq.registry.config_file import JsonObject
from duemq.registry.groups import GroupManager
from duemq.registry.managers import Identity
from duemq.registry.topic_routes import TopicRoutes
from duemq.registry.topics import TopicManager
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from duemq_common.topics import PERM_READ, RETRY_PREFIX

BROADCASTING, CLUSTERING = "BROADCASTING", "CLUSTERING"


class AssignmentProcessor:
    """Handlers of 400, 401 and 402.

    Args:
        clients: Members of the groups.
        modes: Request modes that were set.
        config: Returns the current configuration.
    """

    def __init__(
        self,
        topics: TopicManager,
        groups: GroupManager,
        clients: ClientTable,
        routes: TopicRoutes,
        identity: Identity,
        modes: RequestModes,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._topics, self._groups, self._clients = topics, groups, clients
        self._routes, self._identity = routes, identity
        self._modes, self._config = modes, config

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self.assign,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.all_modes,
        }

    async def assign(self, request: Request) -> Response:
        """Respond with the queues of one member (400).

        A response without a list makes the client keep its current queues.

        Raises:
            RequestError: INVALID_PARAMETER: the body is malformed.
        """
        body = _body(request)
        topic, group = _text(body, "topic"), _text(body, "consumerGroup")
        model = _text(body, "messageModel")
        if model not in (BROADCASTING, CLUSTERING):
            raise _invalid(f"messageModel is {model[:32]!r}")
        mode = self._mode(topic, group)
        queues: Iterable[AssignedQueue] | None = await self._queues_of(topic) or None
        if queues and model == CLUSTERING and self._config().server_load_balancer:
            queues = self._allocated(body, mode, list(queues))
        if queues is None:
            return Response(body=wire_json.encode({}))
        assigned = [
            {
                "messageQueue": wire_json.QueueKey(
                    queue.broker_name, queue.queue_id, queue.topic
                ).to_json(),
                "mode": mode.mode,
            }
            for queue in sorted(set(queues))
        ]
        return Response(body=wire_json.encode({"messageQueueAssignments": assigned}))

    async def _queues_of(self, name: str) -> list[AssignedQueue]:
        """Return the queues that consumers may read, sorted.

        They are those of all brokers, or of this broker only if no name server responds.
        """
        topic, own = self._topics.find(name), self._identity.broker_name
        brokers = await self._routes.find(name, "" if topic is None else own)
        counts = {each.broker_name: each.read_queues for each in brokers if each.perm & PERM_READ}
        if not brokers and topic is not None and topic.perm & PERM_READ:
            counts = {own: topic.read_queues}
        return [
            AssignedQueue(name, each, n) for each, count in counts.items() for n in range(count)
        ]

    def _mode(self, topic: str, group: str) -> RequestMode:
        mode = self._modes.find(topic, group)
        if mode is not None:
            return mode
        config = self._config()
        if topic.startswith(RETRY_PREFIX) or config.default_request_mode == PULL:
            return RequestMode(PULL)
        return RequestMode(POP, config.default_shared_queues)

    def _allocated(
        self, body: JsonObject, mode: RequestMode, queues: list[AssignedQueue]
    ) -> list[AssignedQueue] | None:
        """Return the queues of the requesting member.

        Returns:
            None if the group has no members, the strategy is unknown, or the client id is missing.
        """
        members = self._clients.members(_text(body, "consumerGroup"))
        strategy = STRATEGIES.get(str(body.get("strategyName")))
        member = str(body.get("clientId") or "")
        if not members or strategy is None:
            return None
        if mode.mode == POP:
            return allocate_for_pop(strategy, queues, members, member, mode.shared_queues)
        return allocate(strategy, queues, members, member) if member.strip() else None

    async def set_mode(self, request: Request) -> Response:
        """Set whether a group pulls or pops a topic (401); in effect from the next rebalance.

        Raises:
            RequestError: The body is malformed, the topic is a retry topic, or the topic or the
                group does not exist.
        """
        body = _body(request)
        topic, group = _text(body, "topic"), _text(body, "consumerGroup")
        try:
            mode = RequestMode.of(body)
        except ValueError as error:
            raise _invalid(str(error)) from error
        if topic.startswith(RETRY_PREFIX):
            raise RequestError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._topics.find(topic) is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if self._groups.find_or_create(group) is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
            )
        await self._modes.set(topic, group, mode)
        return Response()

    async def all_modes(self, request: Request) -> Response:
        """Respond with the table of all modes (402), which replicas copy."""
        return Response(body=wire_json.encode(self._modes.to_json()))


def _body(request: Request) -> JsonObject:
    try:
        return wire_json.parse_object(request.body)
    except ValueError as error:
        raise _invalid(f"the body is malformed: {error}") from error


def _text(body: JsonObject, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise _invalid(f"{name} is missing")
    return value


def _invalid(text: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, text)
