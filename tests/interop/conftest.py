"""One broker and one Java program per client version for all tests; Go and C++ per test."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.interop.peers import make_peer
from tests.interop.programs import CLIENTS, go_program, java_command, python_command
from tests.interop.session import Client, ClientSession, FreshSessions
from tests.support.requirements import Missing, skip_without
from tests.support.server import Server

JAVA_VERSIONS = ("4.9.7", "5.3.3")
JavaSessions = Callable[[str], ClientSession]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test whose fixtures miss something on this machine."""
    with skip_without():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test that itself misses something on this machine."""
    with skip_without():
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The broker under test, started."""
    with make_peer(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture(scope="session")
def java_sessions(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaSessions]:
    """Gives the Java client program of a version, started when it is first asked for."""
    started: dict[str, ClientSession] = {}

    def session(version: str) -> ClientSession:
        if version not in started:
            home = tmp_path_factory.mktemp(f"java-{version}")
            command = java_command(version, home)
            started[version] = ClientSession(
                f"java-{version}", command, namesrv=server.namesrv_address, home=home
            )
        return started[version]

    yield session
    for each in started.values():
        each.close()


@pytest.fixture(params=JAVA_VERSIONS, ids=[f"java-{version}" for version in JAVA_VERSIONS])
def java(request: pytest.FixtureRequest, java_sessions: JavaSessions) -> ClientSession:
    """Apache's Java client, in each version."""
    return java_sessions(str(request.param))


@pytest.fixture
def java_with_timers(java_sessions: JavaSessions) -> ClientSession:
    """The Java client that knows timers."""
    return java_sessions("5.3.3")


@pytest.fixture
def go(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """rocketmq-client-go."""
    command = [str(go_program(CLIENTS / "go")), "session"]
    home = tmp_path_factory.mktemp("go")
    with ClientSession("go", command, namesrv=server.namesrv_address, home=home) as session:
        yield session


@pytest.fixture
def cpp(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """librocketmq, the C++ client."""
    if importlib.util.find_spec("rocketmq") is None:
        raise Missing("the Python package rocketmq (with librocketmq) is not installed")
    command = python_command("cpp_client.py")
    home = tmp_path_factory.mktemp("cpp")
    sessions = FreshSessions("cpp", command, namesrv=server.namesrv_address, home=home)
    yield sessions
    sessions.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of this test's own, allowed for topics and groups."""
    file = request.node.path.stem.removeprefix("test_")
    return re.sub(r"[^A-Za-z0-9]+", "-", f"{file}-{request.node.name}").strip("-")


@pytest.fixture
def topic(name: str, server: Server) -> str:
    """A topic of this test's own, with four queues."""
    server.create_topic(name)
    return name


@pytest.fixture
def group(name: str, server: Server) -> str:
    """A consumer group of this test's own.

    Its retry topic exists already: clients look for new routes only every 30 s.
    """
    server.create_topic(f"%RETRY%g-{name}", queue_count=1)
    return f"g-{name}"
