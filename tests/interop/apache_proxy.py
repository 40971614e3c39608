"""Apache RocketMQ's gRPC proxy in cluster mode, as a process in front of any broker.

    with ApacheProxy("5.3.3", home, server.namesrv_address) as proxy:
        proxy.address          # host:port for gRPC clients

Its topics need a type: `typed_topic` creates one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Self

from tests.interop.apache import LOGBACK, artifact_jars, jvm_options
from tests.interop.class_archive import archive_options
from tests.support.child_process import Child, wait_for_child
from tests.support.free_ports import LOOPBACK, free_ports, listening
from tests.support.remoting_requests import create_topic
from tests.support.requirements import need_commands
from tests.support.server import CLUSTER_NAME, READY_S, Server

ARTIFACT: Final = "rocketmq-proxy"
VERSIONS: Final = ("5.3.3", "5.5.0")


class ApacheProxy:
    """One proxy of one version.

    Args:
        namesrv_address: Name server of the broker.
    """

    def __init__(self, version: str, home: Path, namesrv_address: str) -> None:
        assert version in VERSIONS
        self.version, self.home = version, home
        self._namesrv_address = namesrv_address
        self.port, self._remoting_port = free_ports(2)
        self._child: Child | None = None

    @property
    def address(self) -> str:
        """`host:port` for gRPC clients."""
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start the proxy and wait until it listens.

        Raises:
            RuntimeError: The process ended; the message contains the end of its log.
            WaitedTooLong: It did not become ready.
        """
        need_commands("java")
        conf = self._write_configuration()
        jars = artifact_jars(ARTIFACT, self.version)
        command = ["java", *jvm_options(), *archive_options("proxy", jars)]
        command += ["-Xmx512m", f"-Duser.home={self.home}"]
        command += [f"-XX:ErrorFile={self.home / 'proxy'}-crash.log"]
        command += [
            f"-Drmq.logback.configurationFile={self.home / 'conf' / 'rmq.proxy.logback.xml'}"
        ]
        command += ["-cp", f"{jars}/*"]
        command += ["org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(conf), "-pm", "cluster"]
        self._child = Child(
            f"apache-proxy-{self.version}",
            command,
            log_path=self.home / "proxy.log",
            env={"RMQ_PROXY_HOME": str(self.home)},
        )
        wait_for_child(
            self._child,
            lambda: listening(self.port),
            seconds=READY_S,
            what=f"proxy {self.version} on {self.port}",
        )

    def cpu_seconds(self) -> float:
        """Return the processor time of the process so far."""
        assert self._child is not None
        return self._child.cpu_seconds()

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        return self._child.log_tail() if self._child is not None else ""

    def stop(self) -> None:
        """Kill the proxy, since its clean shutdown takes 30 s."""
        if self._child is not None:
            self._child.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _write_configuration(self) -> Path:
        conf = self.home / "conf" / "rmq-proxy.json"
        conf.parent.mkdir(parents=True, exist_ok=True)
        keys = {
            "rocketMQClusterName": CLUSTER_NAME,
            "proxyClusterName": CLUSTER_NAME,
            "namesrvAddr": self._namesrv_address,
            "proxyMode": "CLUSTER",
            "localServeAddr": LOOPBACK,
            "grpcServerPort": self.port,
            "remotingListenPort": self._remoting_port,
            "topicConfigCacheRefreshSeconds": 1,
            "topicRouteServiceCacheRefreshSeconds": 1,
            "transactionHeartbeatPeriodSecond": 1,
        }
        conf.write_text(json.dumps(keys))
        (conf.parent / "rmq.proxy.logback.xml").write_text(LOGBACK)
        return conf


def typed_topic(server: Server, topic: str, kind: str, *, queue_count: int = 4) -> None:
    """Create a topic that accepts messages of one type: NORMAL, DELAY, FIFO or TRANSACTION."""
    create_topic(
        server.broker_port, topic, queue_count=queue_count, attributes=f"+message.type={kind}"
    )
