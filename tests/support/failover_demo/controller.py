"""Apache's controller and name server in one process, fetched by Maven.

The jars are stored in the user's cache directory.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from duemq.cli.cache_home import user_cache
from duemq.cli.exits import Exit, fail

VERSION: Final = "5.3.3"
MAIN: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
FETCH_S_MAX: Final = 1_200
POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>duemq</groupId>
  <artifactId>controller</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-namesrv</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
CONFIGURATION: Final = """\
listenPort={namesrv_port}
bindAddress=127.0.0.1
enableControllerInNamesrv=true
controllerDLegerGroup=controllers
controllerDLegerPeers=n0-127.0.0.1:{controller_port}
controllerDLegerSelfId=n0
controllerStorePath={store}
mappedFileSize=4194304
scanNotActiveBrokerInterval=1000
"""
LOGGING: Final = """\
<configuration>
  <appender name="C" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %c{0} - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="C"/></root>
</configuration>
"""
# JDK packages that the libraries of this version need.
OPEN_JDK: Final = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)


def fetch_jars() -> Path:
    """Return the directory of the jars; fetch them with Maven if it is missing."""
    jars = (user_cache() or Path(tempfile.gettempdir())) / f"controller-{VERSION}"
    if jars.is_dir():
        return jars
    for command, package in (("java", "default-jdk-headless"), ("mvn", "maven")):
        if shutil.which(command) is None:
            fail(
                f"{command} was not found: Apache's controller needs it (Debian: apt-get install "
                f"{package})",
                Exit.USAGE,
            )
    part = jars.with_suffix(".part")
    part.mkdir(parents=True, exist_ok=True)
    (part / "pom.xml").write_text(POM)
    words = ["mvn", "-q", "-B", "-f", str(part / "pom.xml"), "dependency:copy-dependencies"]
    done = subprocess.run(
        [*words, f"-DoutputDirectory={part}"],
        capture_output=True,
        text=True,
        timeout=FETCH_S_MAX,
        check=False,
    )
    if done.returncode:
        fail(
            f"Maven cannot fetch the controller {VERSION}:\n{done.stdout}{done.stderr}", Exit.USAGE
        )
    part.rename(jars)
    return jars


def controller_command(
    jars: Path, home: Path, *, namesrv_port: int, controller_port: int
) -> list[str]:
    """Write the configuration below `home`; return the command that runs the process."""
    logs = home / "conf"
    logs.mkdir(parents=True)
    (logs / "logback_namesrv.xml").write_text(LOGGING)
    (logs / "rmq.namesrv.logback.xml").write_text(LOGGING)
    conf = home / "namesrv.conf"
    ports = {"namesrv_port": namesrv_port, "controller_port": controller_port}
    conf.write_text(CONFIGURATION.format(store=home / "controller", **ports))
    return [
        "java",
        *OPEN_JDK,
        "-Xmx256m",
        f"-Duser.home={home}",
        f"-Drocketmq.home.dir={home}",
        "-cp",
        f"{jars}/*",
        MAIN,
        "-c",
        str(conf),
    ]
