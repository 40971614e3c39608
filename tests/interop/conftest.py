"""Fixtures: one broker and one Java program per client version for all tests; Go, C++ per test."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Generator, Iterator

import pytest

from tests.interop.admin_process import end_processes
from tests.interop.apache import NEWEST
from tests.interop.peers import make_peer
from tests.interop.programs import CLIENTS, go_program, java_command, python_command
from tests.interop.session import Client, ClientSession, FreshSessions
from tests.support import memory_files
from tests.support.extended import extended
from tests.support.requirements import Missing, skip_without
from tests.support.server import Server

tmp_path_factory = memory_files.tmp_path_factory

JavaSessions = Callable[[str], ClientSession]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder."""
    for item in items:
        if item.nodeid.startswith("tests/interop/"):
            item.add_marker(pytest.mark.interop)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test if a requirement of its fixtures is missing."""
    with skip_without():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test if one of its own requirements is missing."""
    with skip_without():
        yield


@pytest.fixture(scope="session", autouse=True)
def _end_of_mqadmin() -> Iterator[None]:
    """Java processes that run commands of mqadmin end with the tests."""
    yield
    end_processes()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The broker under test, started."""
    with make_peer(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture(scope="session")
def java_sessions(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaSessions]:
    """Return the Java client program of a version; the first call starts it."""
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


@pytest.fixture(
    params=[
        extended("4.9.7", id="java-4.9.7"),
        pytest.param("5.3.3", id="java-5.3.3"),
        extended(NEWEST, id=f"java-{NEWEST}"),
    ]
)
def java(request: pytest.FixtureRequest, java_sessions: JavaSessions) -> ClientSession:
    """Apache's Java client, in each version."""
    return java_sessions(str(request.param))


@pytest.fixture
def java_with_timers(java_sessions: JavaSessions) -> ClientSession:
    """The Java client that supports timers."""
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
    """Unique name for the test, valid for topics and groups."""
    file = request.node.path.stem.removeprefix("test_")
    return re.sub(r"[^A-Za-z0-9]+", "-", f"{file}-{request.node.name}").strip("-")


@pytest.fixture
def topic(name: str, server: Server) -> str:
    """Topic for the test, with four queues."""
    server.create_topic(name)
    return name


@pytest.fixture
def group(name: str, server: Server) -> str:
    """Consumer group for the test, with an existing retry topic.

    Clients would discover a new retry topic only after up to 30 s.
    """
    server.create_topic(f"%RETRY%g-{name}", queue_count=1)
    return f"g-{name}"
