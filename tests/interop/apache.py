"""Apache RocketMQ's name server, broker and tools, fetched by Maven and run on loopback.

The jars of each version are cached in `~/.cache/duemq-peer/lib-VERSION`, or below APACHE_PEER_HOME.
APACHE_PEER_JVM sets additional JVM options, which tests use for a short start. With
APACHE_PEER_PATIENT brokers refuse no request because the machine is busy, and write the progress of
timers seldom. With APACHE_PEER_ARCHIVES they load their classes from archives (`class_archive`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.interop.class_archive import archive_options
from tests.support.child_process import Child, wait_for_child
from tests.support.free_ports import LOOPBACK, listening
from tests.support.requirements import need_commands
from tests.support.server import READY_S, Server, write_properties

VERSIONS = ("4.9.7", "5.3.3")
CONTROLLER_VERSIONS = ("5.3.3", "5.5.0")
NEWEST = "5.5.1"
OTHERS = {
    "5.5.1": "5.5.0"
}  # version of auth, client, filter, namesrv, srvutil and tools, if not its own
POMS = Path(__file__).parent / "maven"
FETCH_S = 1_200
# Both versions access JDK internals for direct memory; Java 17 requires these options.
OPEN_JDK = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
# Else a request that waited for 200 ms is refused, and a send after a pause of the JVM of 1 s.
PATIENT = {"brokerFastFailureEnable": "false", "osPageCacheBusyTimeOutMills": "60000"}
# Each flush compares all 38 MB of the timer wheel with the file: 0.4 s of every second by default.
PATIENT |= {"timerFlushIntervalMs": "10000"}
OWN_LOGS = ("broker", "store", "controller")  # of 5.x
LOGBACK_LINE = re.compile(r"\d\d:\d\d:\d\d,\d{3} \|-")  # 5.x prints how it configures logging
LOGBACK = """<configuration>
  <appender name="C" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %c{0} - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="C"/></root>
</configuration>
"""


def cache_dir() -> Path:
    """Return the folder for jars and compiled programs, shared by all checkouts of a user."""
    named = os.environ.get("APACHE_PEER_HOME")
    path = Path(named) if named else Path.home() / ".cache" / "duemq-peer"
    path.mkdir(parents=True, exist_ok=True)
    return path


def jars(version: str) -> Path:
    """Return the folder with the jars of name server, broker, tools and client of a version."""
    known = sorted({*VERSIONS, *CONTROLLER_VERSIONS, NEWEST})
    assert version in known, f"Apache {version} is not one of {known}"
    words = f"-DpeerVersion={version}", f"-DpeerOthers={OTHERS.get(version, version)}"
    return _fetched(f"lib-{version}", "pom.xml", *words)


def artifact_jars(artifact: str, version: str) -> Path:
    """Return the folder with the jars of an Apache RocketMQ artifact and its dependencies."""
    words = f"-DpeerArtifact={artifact}", f"-DpeerVersion={version}"
    return _fetched(f"lib-{artifact}-{version}", "artifact.xml", *words)


def _fetched(name: str, pom: str, *properties: str) -> Path:
    """Return a folder with the jars of a POM; fetch them if they are not cached.

    Raises:
        RuntimeError: Maven failed; the message contains its output.
    """
    folder = cache_dir() / name
    if not folder.is_dir():
        need_commands("java", "mvn")
        part = folder.with_name(f"{name}.part{os.getpid()}")
        command = ["mvn", "-q", "-B", "-f", str(POMS / pom), *properties]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={part}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
        if done.returncode:
            shutil.rmtree(part, ignore_errors=True)
            raise RuntimeError(f"Maven could not fetch {name}:\n{done.stdout}{done.stderr}")
        if not folder.is_dir():
            part.rename(folder)
        shutil.rmtree(part, ignore_errors=True)
    return folder


def jvm_options() -> list[str]:
    """Return the JVM options of all Apache processes."""
    return [*OPEN_JDK, *os.environ.get("APACHE_PEER_JVM", "-XX:+UseG1GC").split()]


def classpath(version: str) -> str:
    """Return the class path of a version, for `java -cp` and `javac -cp`."""
    return f"{jars(version)}/*"


class Apache(Server):
    """Apache's name server and broker of one version, as two processes.

    Args:
        heap: Maximum heap of the broker (`-Xmx`); `fixed_heap` also sets `-Xms`.
        with_namesrv: Start a name server; without one, requests reach the broker by its address.
    """

    def __init__(
        self,
        version: str,
        home: Path,
        *,
        store_dir: Path | None = None,
        keys: Mapping[str, str] | None = None,
        heap: str = "1g",
        fixed_heap: bool = False,
        with_namesrv: bool = True,
    ) -> None:
        super().__init__(home, store_dir=store_dir, keys=keys)
        need_commands("java")
        self.version = version
        self.name = f"apache-{version}"
        self.has_timers = version.startswith("5.")
        self._heap = [f"-Xmx{heap}", "-XX:MaxDirectMemorySize=4g"]
        self._heap += [f"-Xms{heap}"] if fixed_heap else []
        self.namesrv: Child | None = None
        self._with_namesrv = with_namesrv
        write_logging(home)

    def stop(self) -> None:
        """Stop the broker cleanly, which takes 15 s, and kill the name server."""
        super().stop()
        if self.namesrv is not None:
            self.namesrv.kill()

    def __exit__(self, *exc: object) -> None:
        """Kill both processes; a test that reads the store afterwards must call `stop` first."""
        if self._broker is not None:
            self._broker.kill()
        self.stop()

    def start_namesrv(self) -> None:
        if not self._with_namesrv or (self.namesrv is not None and self.namesrv.running):
            return
        conf = write_properties(
            self.home / "namesrv.conf",
            {"listenPort": str(self.namesrv_port), "bindAddress": LOOPBACK},
        )
        self.namesrv = self.start_java("namesrv", "namesrv.NamesrvStartup", conf, ["-Xmx256m"])
        wait_for_child(
            self.namesrv,
            lambda: listening(self.namesrv_port),
            seconds=READY_S,
            what=f"name server {self.version} on {self.namesrv_port}",
        )

    def ready(self) -> bool:
        """Return whether the broker listens and, if there is a name server, has its route there."""
        return super().ready() if self._with_namesrv else listening(self.broker_port)

    def start_broker(self) -> Child:
        keys = self._common_keys() | {"haListenPort": str(self.ha_port)}
        keys |= {"namesrvAddr": self.namesrv_address} if self._with_namesrv else {}
        patient = PATIENT if "APACHE_PEER_PATIENT" in os.environ else {}
        conf = write_properties(self.home / "broker.conf", keys | patient | self.keys)
        return self.start_java("broker", "broker.BrokerStartup", conf, self._heap)

    def start_java(self, name: str, main: str, conf: Path, options: list[str]) -> Child:
        return java_process(self.version, self.home, name, main, conf, options)


def write_logging(home: Path) -> None:
    """Configure Java programs that run below `home` to log warnings to standard output."""
    conf = home / "rmq" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for part in ("broker", "namesrv", "controller", "tools"):
        (conf / f"logback_{part}.xml").write_text(LOGBACK)


def java_process(
    version: str, home: Path, name: str, main: str, conf: Path, options: list[str]
) -> Child:
    """Start a program of a version with a configuration file; its log is below `home`."""
    command = ["java", *jvm_options(), *archive_options(name, jars(version))]
    command += [*options, f"-Duser.home={home}"]
    command += [f"-XX:ErrorFile={home / name}-crash.log"]
    command += ["-cp", classpath(version), f"org.apache.rocketmq.{main}", "-c", str(conf)]
    return Child(
        f"apache-{version} {name}",
        command,
        log_path=home / f"{name}.log",
        env={"ROCKETMQ_HOME": str(home / "rmq")},
        own_logs=[home / "logs" / "rocketmqlogs" / f"{part}.log" for part in OWN_LOGS],
    )
