"""Request processor of a name server: all codes of clients, brokers and mqadmin.

Routes are compact JSON with quoted ids: the Go client splits the text by hand.
Source: DefaultRequestProcessor, ClientRequestProcessor
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping, Sequence

from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.kv_config import ORDER_NAMESPACE, KVConfig
from duemq.namesrv.registration_body import crc_of, decode_body
from duemq.namesrv.route_table import BrokerAddrInfo, QueueData, Registration, RouteTable
from duemq.net import fields, wire_json
from duemq.net.allowed_networks import parse_sources
from duemq.net.dispatcher import CheckedHandler, Handler
from duemq.registry.topic_config import UNIT_FLAG, UNIT_SUB_FLAG
from duemq_common.clock import AwakeTime, Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.config import options, parse_properties, parse_value, to_properties
from duemq_common.data_version import DataVersion, integer
from duemq_common.errors import ConfigError, RequestError
from duemq_common.request import Peer, Request, Response

log = logging.getLogger(__name__)
EXPIRES_MS_MAX = 86_400_000
BROKERS_OF_CHANNEL_MAX = 64
DECODE_HERE_BYTES_MAX = 65_536


class NamesrvProcessor:
    """Request handlers of one route table.

    Attributes:
        config: Configuration; replaced when 318 changes a key.
        time: Time of heartbeats.
    """

    def __init__(
        self,
        config: NamesrvConfig,
        table: RouteTable,
        kv: KVConfig,
        clock: Clock,
        *,
        own_addresses: Sequence[str] = (),
    ) -> None:
        self.config = config
        self._brokers_from = parse_sources("registerFrom", config.register_from, own_addresses)
        self._tools_from = parse_sources("administerFrom", config.administer_from, own_addresses)
        self._table, self._kv, self.time = table, kv, AwakeTime(clock)
        self._watched: set[Peer] = set()

    def handlers(self) -> dict[int, Handler]:
        """Return handlers by request code."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: CheckedHandler(self.route, ("topic",)),
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.REGISTER_BROKER: self.register,
            RequestCode.UNREGISTER_BROKER: self.unregister,
            RequestCode.QUERY_DATA_VERSION: CheckedHandler(
                self.query_version, body_bytes_max=DECODE_HERE_BYTES_MAX
            ),
            RequestCode.BROKER_HEARTBEAT: self.heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: CheckedHandler(
                self.member_group, ("clusterName", "brokerName")
            ),
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: CheckedHandler(self.topics_of_cluster, ("cluster",)),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.unit_sub_only_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: CheckedHandler(
                self.register_topic, body_bytes_max=DECODE_HERE_BYTES_MAX
            ),
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write,
            RequestCode.PUT_KV_CONFIG: self.put_kv,
            RequestCode.GET_KV_CONFIG: CheckedHandler(self.get_kv, ("namespace", "key")),
            RequestCode.DELETE_KV_CONFIG: self.delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: CheckedHandler(self.list_kv, ("namespace",)),
            RequestCode.UPDATE_NAMESRV_CONFIG: CheckedHandler(
                self.update_config, body_bytes_max=DECODE_HERE_BYTES_MAX
            ),
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }

    # -- clients ------------------------------------------------------------------------------

    async def route(self, request: Request) -> Response:
        """Return the route of a topic; code 17 if no broker has it."""
        topic = request.fields["topic"]
        route = self._table.route(topic)
        if route is None:
            text = f"No topic route info in name server for the topic: {topic}"
            return Response(ResponseCode.TOPIC_NOT_EXIST, text)
        if self.config.order_message_enable:
            order = self._kv.get(ORDER_NAMESPACE, topic)
            if order is not None:
                route["orderTopicConf"] = order
        return Response(body=wire_json.encode(route))

    async def cluster_info(self, request: Request) -> Response:
        """Return all clusters and their brokers."""
        return Response(body=wire_json.encode(self._table.cluster_info()))

    # -- brokers ------------------------------------------------------------------------------

    async def register(self, request: Request) -> Response:
        """Register a broker and its topics; return the address of the master to a slave."""
        self._brokers_from.check(request, "a broker's registration")
        registration = await self._registration(request)
        self._check_channel(registration)
        self._warn_moved(registration)
        result = self._table.register(registration, self.time.now_ms())
        if request.peer is not None and request.peer not in self._watched:
            self._watched.add(request.peer)
            request.peer.on_close(self._closed)
        response = {"haServerAddr": result.ha_address, "masterAddr": result.master_address}
        order = self._kv.table(ORDER_NAMESPACE) if self.config.return_order_config else None
        return Response(
            fields={name: value for name, value in response.items() if value},
            body=wire_json.encode({"table": order}) if order else b"",
        )

    def _warn_moved(self, registration: Registration) -> None:
        """Log a registration that replaces that of another process, as after a failover."""
        address = self._table.address_of(registration.broker_name, registration.broker_id)
        if address is not None and address != registration.address:
            log.warning(
                "broker %s with id %d registers at %s; it was at %s. Unless this is a failover, "
                "another machine uses its name: set registerFrom to the brokers' networks",
                ascii(registration.broker_name),
                registration.broker_id,
                ascii(registration.address),
                ascii(address),
            )

    def _check_channel(self, registration: Registration) -> None:
        """Raise if the connection is closed or has registered too many brokers."""
        if registration.channel is None:
            return
        if getattr(registration.channel, "closed", False):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the connection is closed")
        count = self._table.count_of(registration.channel)
        if count >= BROKERS_OF_CHANNEL_MAX and not self._table.is_known(registration):
            text = f"this connection has registered {count} brokers, the limit; open another one"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)

    async def _registration(self, request: Request) -> Registration:
        crc = fields.integer(request, "bodyCrc32", 0)
        if crc and crc != crc_of(request.body):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the body does not match its bodyCrc32")
        try:
            compressed = fields.boolean(request, "compressed")
            if len(request.body) < DECODE_HERE_BYTES_MAX and not compressed:
                body = decode_body(request.body, compressed=False)
            else:  # does not block the event loop
                body = await asyncio.to_thread(decode_body, request.body, compressed=compressed)
        except ValueError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"registration refused: {error}"
            ) from error
        key = _live_key(request)
        acting = "enableActingMaster" in request.fields
        return Registration(
            cluster=key.cluster,
            broker_name=fields.text(request, "brokerName"),
            broker_id=fields.long(request, "brokerId"),
            address=key.address,
            ha_address=fields.text(request, "haServerAddr"),
            version=body.version,
            topics=body.topics,
            channel=request.peer,
            expires_after_ms=self._expires_after(request),
            acting_master=fields.boolean(request, "enableActingMaster") if acting else None,
            filter_servers=body.filter_servers,
        )

    def _expires_after(self, request: Request) -> int:
        requested_ms = fields.long(request, "heartbeatTimeoutMillis", 0)
        return (
            min(requested_ms, EXPIRES_MS_MAX) if requested_ms > 0 else self.config.broker_expired_ms
        )

    def _closed(self, peer: Peer) -> None:
        self._watched.discard(peer)
        for key in self._table.drop_brokers_on(peer):
            log.warning("broker %s of %s closed its connection: removed", *map(ascii, key[::-1]))

    def expire(self) -> None:
        """Remove the brokers whose heartbeat is overdue."""
        for key in self._table.expire(self.time.now_ms()):
            log.warning("broker %s of %s sent no heartbeat: removed", *map(ascii, key[::-1]))

    async def unregister(self, request: Request) -> Response:
        """Remove a broker."""
        self._brokers_from.check(request, "the end of a registration")
        fields.text(request, "brokerName")
        fields.long(request, "brokerId")
        key = _live_key(request)
        if self._table.is_local(key):
            text = f"{key.address} is the broker of this process; stop it to unregister it"
            raise RequestError(ResponseCode.NO_PERMISSION, text)
        if self._table.unregister(key):
            log.info("broker %.200s of %.200s unregistered", ascii(key.address), ascii(key.cluster))
        return Response()

    async def query_version(self, request: Request) -> Response:
        """Return whether a broker's topics changed; if not, record a heartbeat."""
        key = _live_key(request)
        version = self._table.version_of(key)
        try:
            sent = DataVersion.from_json(wire_json.parse_object(request.body))
        except ValueError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"invalid data version: {error}"
            ) from error
        changed = version != sent
        if not changed and self._may_register(request):
            self._table.record_heartbeat(key, self.time.now_ms())
        return Response(
            fields={"changed": "true" if changed else "false"},
            body=wire_json.encode(version.to_json()) if version is not None else b"",
        )

    async def heartbeat(self, request: Request) -> Response:
        """Record a heartbeat of a broker."""
        if self._may_register(request):
            self._table.record_heartbeat(_live_key(request), self.time.now_ms())
        return Response()

    def _may_register(self, request: Request) -> bool:
        return request.peer is None or self._brokers_from.allows(request.peer.address[0])

    async def member_group(self, request: Request) -> Response:
        """Return the addresses of a broker name."""
        cluster, name = request.fields["clusterName"], request.fields["brokerName"]
        group = self._table.member_group(cluster, name)
        return Response(body=wire_json.encode({"brokerMemberGroup": group}))

    # -- topic lists --------------------------------------------------------------------------

    async def topics(self, request: Request) -> Response:
        """Return all topics."""
        return _topic_list(self._table.topics())

    async def topics_of_cluster(self, request: Request) -> Response:
        """Return the topics of one cluster."""
        return _topic_list(self._table.topics_of(request.fields["cluster"]))

    async def system_topics(self, request: Request) -> Response:
        """Return the system topics (names of clusters and brokers), and a broker address."""
        names = dict.fromkeys(
            name
            for cluster in self._table.clusters()
            for name in (cluster, *self._table.brokers_of(cluster))
        )
        return _topic_list(list(names), self._table.first_address())

    async def unit_topics(self, request: Request) -> Response:
        """Return the topics that belong to a unit."""
        return _topic_list(self._table.topics_where(lambda flag: bool(flag & UNIT_FLAG)))

    async def unit_sub_topics(self, request: Request) -> Response:
        """Return the topics that units subscribe to."""
        return _topic_list(self._table.topics_where(lambda flag: bool(flag & UNIT_SUB_FLAG)))

    async def unit_sub_only_topics(self, request: Request) -> Response:
        """Return the topics that units subscribe to and that belong to no unit."""
        both = UNIT_FLAG | UNIT_SUB_FLAG
        return _topic_list(self._table.topics_where(lambda flag: flag & both == UNIT_SUB_FLAG))

    # -- administration -----------------------------------------------------------------------

    async def delete_topic(self, request: Request) -> Response:
        """Delete the route of a topic, everywhere or in one cluster."""
        topic = fields.text(request, "topic")
        if self._table.route(topic) is None:
            return Response()  # already deleted by the broker
        self._tools_from.check(request, "the deletion of a topic")
        self._table.delete_topic(topic, request.fields.get("clusterName", ""))
        log.info("topic %s deleted", ascii(topic))
        return Response()

    async def register_topic(self, request: Request) -> Response:
        """Add a topic to registered brokers."""
        self._tools_from.check(request, "a topic's registration")
        topic = fields.text(request, "topic")
        try:
            queues = _queues_of_route(wire_json.parse_object(request.body))
        except ValueError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"invalid topic route: {error}"
            ) from error
        self._table.add_topic(topic, queues)
        return Response()

    async def wipe_write(self, request: Request) -> Response:
        """Forbid writing to the topics of a broker; return their number."""
        self._tools_from.check(request, "a broker's write permission")
        count = self._table.set_writable(fields.text(request, "brokerName"), False)
        return Response(fields={"wipeTopicCount": str(count)})

    async def add_write(self, request: Request) -> Response:
        """Allow writing to the topics of a broker; return their number."""
        self._tools_from.check(request, "a broker's write permission")
        count = self._table.set_writable(fields.text(request, "brokerName"), True)
        return Response(fields={"addTopicCount": str(count)})

    async def put_kv(self, request: Request) -> Response:
        """Set a value of the key-value table."""
        self._tools_from.check(request, "a key-value pair")
        namespace, key = fields.text(request, "namespace"), fields.text(request, "key")
        await self._kv.put(namespace, key, fields.text(request, "value"))
        return Response()

    async def get_kv(self, request: Request) -> Response:
        """Return a value of the key-value table; code 22 if it is absent."""
        namespace, key = request.fields["namespace"], request.fields["key"]
        value = self._kv.get(namespace, key)
        if value is None:
            text = f"No config item, Namespace: {namespace} Key: {key}"
            return Response(ResponseCode.QUERY_NOT_FOUND, text, {})
        return Response(fields={"value": value})

    async def delete_kv(self, request: Request) -> Response:
        """Remove a value of the key-value table."""
        self._tools_from.check(request, "a key-value pair")
        await self._kv.delete(fields.text(request, "namespace"), fields.text(request, "key"))
        return Response()

    async def list_kv(self, request: Request) -> Response:
        """Return all values of a namespace; code 22 if there are none."""
        namespace = request.fields["namespace"]
        table = self._kv.table(namespace)
        if table is None:
            text = f"No config item, Namespace: {namespace}"
            return Response(ResponseCode.QUERY_NOT_FOUND, text)
        return Response(body=wire_json.encode({"table": table}))

    async def update_config(self, request: Request) -> Response:
        """Change configuration keys that may change at run time; all or none."""
        self._tools_from.check(request, "a configuration")
        try:
            changes = parse_properties(request.body.decode("utf-8"), source="request 318")
            self.config = _changed(self.config, changes)
        except (ConfigError, UnicodeDecodeError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        log.info("configuration changed by %r: %.500s", request.peer, ascii(dict(changes)))
        return Response()

    async def get_config(self, request: Request) -> Response:
        """Return the configuration as `key=value` lines."""
        lines = (f"{key}={value}\n" for key, value in to_properties(self.config).items())
        return Response(body="".join(lines).encode())


def _live_key(request: Request) -> BrokerAddrInfo:
    return BrokerAddrInfo(fields.text(request, "clusterName"), fields.text(request, "brokerAddr"))


def _topic_list(names: list[str], address: str = "") -> Response:
    response: dict[str, object] = {"brokerAddr": address} if address else {}
    return Response(body=wire_json.encode({**response, "topicList": names}))


def _queues_of_route(route: Mapping[str, object]) -> dict[str, QueueData]:
    queues = route.get("queueDatas")
    if not isinstance(queues, list) or not all(isinstance(each, Mapping) for each in queues):
        raise ValueError("queueDatas is not a list of objects")
    return {
        str(each.get("brokerName")): QueueData(
            integer(each, "readQueueNums", 0),
            integer(each, "writeQueueNums", 0),
            integer(each, "perm", 0),
            integer(each, "topicSysFlag", 0),
        )
        for each in queues
    }


def _changed(config: NamesrvConfig, changes: Mapping[str, str]) -> NamesrvConfig:
    """Return the configuration with `changes` applied; unknown keys are ignored, as in Apache.

    Raises:
        RequestError: A request may not change one of the keys.
        ConfigError: A value is invalid.
    """
    by_key = {item.key: item for item in options(NamesrvConfig)}
    frozen = {word.strip() for word in config.config_blacklist.split(";")}
    closed = frozen | {"configBlackList", "rocketmqHome"}
    closed |= {key for key, item in by_key.items() if not item.wire}
    refused = sorted(closed & changes.keys())
    if refused:
        text = (
            f"Can not update config in black list: {', '.join(refused)}. Set it in the file on the "
            "name server's machine and restart the name server"
        )
        raise RequestError(ResponseCode.NO_PERMISSION, text)
    values = {
        by_key[key].name: parse_value(by_key[key], value, "request 318")
        for key, value in changes.items()
        if key in by_key
    }
    return dataclasses.replace(config, **values)
