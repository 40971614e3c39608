"""`duemq broker` and `duemq namesrv`: run until a signal arrives.

SIGTERM, SIGINT    stop cleanly, exit 0        SIGHUP    reload the configuration file

The handlers are installed first, before kernels are compiled. A stop that takes longer than
`STOP_S_MAX` ends the process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import importlib
import importlib.metadata
import logging
import logging.config
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from duemq.cli.exits import Exit, fail
from duemq.cli.output import print_json_line
from duemq_common.clock import SystemClock
from duemq_common.config import Properties, errors_name_sources, from_properties
from duemq_common.config_text import read_properties as read_file
from duemq_common.errors import UsageError
from duemq_common.log_lines import JsonFormatter, OneLineFormatter
from duemq_common.memory.allocator import return_large_blocks
from message_store.config import StoreConfig
from message_store.descriptors import headroom, raise_descriptor_limit

if TYPE_CHECKING:
    from duemq.broker.broker import Broker
    from message_store.kernels.preparation import Preparation

log = logging.getLogger("duemq")
T = TypeVar("T")
FEW_DESCRIPTORS = 4_096
STOP_S_MAX = 120
# New objects, less the freed ones, before a garbage collection. By default 700: thousands of held
# pulls that end and begin again would cause a collection of all objects every few seconds.
COLLECTED_OBJECTS = 50_000
SWITCH_S = 0.0005  # limits the delay of the event loop by computing threads
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def set_up_logging(file: Path | None, *, as_json: bool = False) -> None:
    """Configure logging from a file, or to standard error, as text or as JSON objects."""
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter() if as_json else OneLineFormatter(LOG_FORMAT))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        logging.getLogger("apscheduler").setLevel(logging.WARNING)
        return
    try:
        logging.config.fileConfig(file, disable_existing_loggers=False)
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise UsageError(f"--logging {file}: {error}") from error


def run_loop(main: Coroutine[object, object, T]) -> T:
    """Run a coroutine on uvloop."""
    from uvloop import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


class EarlySignals:
    """Handler of signals until a broker handles them.

    SIGTERM and SIGINT end the process: PID 1 of a container has no default actions. SIGHUP is
    noted; its default action would end the process.

    Attributes:
        received: Signals that arrived.
    """

    def __init__(self) -> None:
        self.received = set[int]()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received.add(number)
        if number != signal.SIGHUP:
            log.info("%s: stopped before the start was complete", signal.Signals(number).name)
            raise SystemExit(Exit.DONE)


def limit_stop() -> None:
    """End the process, and log the stacks of its threads, if a stop takes more than `STOP_S_MAX`.

    The same limit applies to a change of role. The next start recovers as after a kill.
    """
    faulthandler.dump_traceback_later(STOP_S_MAX, exit=True)


def on_signals(stop: Callable[[str], None], reload: Callable[[], None] | None = None) -> None:
    """Call `stop` on SIGTERM and SIGINT, `reload` on SIGHUP."""
    loop = asyncio.get_running_loop()

    def stop_in_time(name: str) -> None:
        limit_stop()
        stop(name)

    early = signal.getsignal(signal.SIGHUP)
    received = early.received if isinstance(early, EarlySignals) else ()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_in_time, signal.Signals(number).name)
        if number in received:  # its exception was lost, in a destructor
            stop_in_time(signal.Signals(number).name)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, reload)
        if signal.SIGHUP in received:
            reload()


def serve_broker(
    file: Path | None,
    read_properties: Callable[[], Properties],
    logging_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run a broker.

    Args:
        file: Configuration file that requests may edit; None: none.
        read_properties: Returns the properties of file, environment and command line; called
            again at each reload.
    """
    EarlySignals()
    properties = read_properties()
    gc.disable()
    sys.setswitchinterval(SWITCH_S)
    return_large_blocks()
    set_up_logging(logging_file, as_json=properties.get("logFormat") == "json")
    _raise_descriptor_limit()
    _read_entry_points_once()
    _import_numba()
    from duemq.auth.config import AuthConfig
    from duemq.cli.kernels import compile_if_needed
    from duemq.configuration.exposure import keep_store_private, warn_of_readable_secrets
    from duemq.configuration.replication_config import ReplicationConfig
    from message_store.kernels.array_types import register_array_types

    warn_of_readable_secrets(file, read_file(file) if file is not None else {})
    if from_properties(AuthConfig, properties).is_on:
        keep_store_private(from_properties(StoreConfig, properties).root)
    is_member = _is_member(properties)
    is_replica = from_properties(ReplicationConfig, properties).is_replica
    register_array_types()
    kernels = compile_if_needed(
        from_properties(StoreConfig, properties), is_replicated=is_member or is_replica
    )

    run = _run_member if is_member else _run_broker
    with errors_name_sources(properties):
        reason = run_loop(run(properties, file, read_properties, kernels, as_json))
    faulthandler.cancel_dump_traceback_later()
    if reason:
        fail(f"stopped: {reason}", Exit.STORE)


def _read_entry_points_once() -> None:
    """Read the entry points of all distributions once, not for each library that selects some.

    A reading takes 4 ms. APScheduler makes three, Numba and the plugin host one each.
    """
    select = importlib.metadata.entry_points().select
    importlib.metadata.entry_points = select


def _import_numba() -> None:
    """Import Numba without PyYAML.

    Numba would load it, 15 ms, to read its settings from a file in the working directory.
    """
    if "yaml" in sys.modules:
        return
    sys.modules["yaml"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("numba")
    finally:
        del sys.modules["yaml"]


def _raise_descriptor_limit() -> None:
    limit = raise_descriptor_limit()
    if limit < FEW_DESCRIPTORS:
        log.warning(
            "the limit of %d file descriptors allows only %d connections: raise the hard limit "
            "(ulimit -n; LimitNOFILE= in systemd)",
            limit,
            limit - headroom(limit),
        )


async def _run_broker(
    properties: Properties,
    file: Path | None,
    reload_properties: Callable[[], Properties],
    kernels: Preparation,
    as_json: bool,
) -> str:
    from duemq.broker.broker import Broker
    from duemq_common.memory.huge_pages import huge_pages

    started_s = asyncio.get_running_loop().time()
    broker = Broker(properties, config_file=file, read_again=reload_properties, kernels=kernels)
    on_signals(broker.stop_for_signal, broker.reload)  # `__aenter__` already serves clients
    async with huge_pages(SystemClock()), broker:
        gc.freeze()  # existing objects stay alive
        _on_ready(broker, started_s, as_json)
        await broker.stopped()
        limit_stop()
    if as_json:
        print_json_line({"event": "stopped", "why": broker.failure})
    return broker.failure


def _is_member(properties: Properties) -> bool:
    from duemq.configuration.controller_config import ControllerConfig

    return from_properties(ControllerConfig, properties).enabled


async def _run_member(
    properties: Properties,
    file: Path | None,
    reload_properties: Callable[[], Properties],
    kernels: Preparation,
    as_json: bool,
) -> str:
    from duemq.broker.member_broker import MemberBroker
    from duemq_common.memory.huge_pages import huge_pages

    # Before the first broker: the collector frees those that a change of role has closed. A
    # complete collection at each change would stop the heartbeats for seconds on a busy machine.
    gc.freeze()
    started_s = asyncio.get_running_loop().time()
    member = MemberBroker(
        properties,
        config_file=file,
        read_again=reload_properties,
        kernels=kernels,
        on_serving=lambda broker: _on_ready(broker, started_s, as_json),
        on_closing=limit_stop,
    )
    on_signals(member.stop_for_signal, member.reload)
    async with huge_pages(SystemClock()):
        failure = await member.run()
    if as_json:
        print_json_line({"event": "stopped", "why": failure})
    return failure


def _on_ready(broker: Broker, started_s: float, as_json: bool) -> None:
    """Report that a broker is ready; called again when a group member changes its role."""
    faulthandler.cancel_dump_traceback_later()
    enable_garbage_collector()
    ready = {
        "event": "ready",
        "broker": broker.config.broker_name,
        "address": broker.address,
        "namesrv": broker.namesrv_address,
        "metrics": broker.metrics_port,
        "console": broker.console_port,
        "store": str(broker.settings.store.root),
        "seconds": round(asyncio.get_running_loop().time() - started_s, 3),
    }
    _announce(ready, as_json)


def enable_garbage_collector() -> None:
    """Enable the garbage collector, with thresholds for a process with thousands of clients."""
    gc.set_threshold(COLLECTED_OBJECTS)
    gc.enable()


def _announce(ready: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json_line(ready)
        return
    text = f"broker {ready['broker']} is ready at {ready['address']}"
    if ready["namesrv"]:
        text += f", name server at {ready['namesrv']}"
    if ready["metrics"]:
        text += f", metrics at port {ready['metrics']}"
    if ready["console"]:
        text += f", console and HTTP API at port {ready['console']}"
    print(f"{text}, store {ready['store']} ({ready['seconds']} s)", flush=True)


def serve_namesrv(
    file: Path | None, properties: Properties, logging_file: Path | None, *, as_json: bool
) -> None:
    """Run a name server."""
    EarlySignals()
    from duemq.configuration.exposure import warn_of_readable_secrets

    set_up_logging(logging_file, as_json=properties.get("logFormat") == "json")
    warn_of_readable_secrets(file, read_file(file) if file is not None else {})
    _raise_descriptor_limit()
    with errors_name_sources(properties):
        run_loop(_run_namesrv(properties, as_json))
    faulthandler.cancel_dump_traceback_later()


async def _run_namesrv(properties: Properties, as_json: bool) -> None:
    from duemq.auth.config import AuthConfig
    from duemq.configuration.apache_keys import check_refusals
    from duemq.configuration.exposure import warn_if_exposed
    from duemq.configuration.settings import key_notices
    from duemq.namesrv.config import SECTIONS, NamesrvConfig
    from duemq.namesrv.name_servers import name_server
    from duemq.net.tls import load_tls
    from duemq.net.tls_config import TlsConfig

    check_refusals(properties)
    for notice in key_notices(properties, SECTIONS):
        log.warning("%s", notice)
    config = from_properties(NamesrvConfig, properties)
    tls = load_tls(from_properties(TlsConfig, properties))
    stop = asyncio.Event()
    on_signals(lambda name: stop.set())
    auth = from_properties(AuthConfig, properties)
    async with name_server(config, auth, SystemClock(), tls.server) as server:
        host, port = server.config.bind_address, server.port
        warn_if_exposed("the name server", host, port, checked=auth.is_on)
        address = f"{host}:{port}"
        if as_json:
            print_json_line({"event": "ready", "address": address})
        else:
            print(f"name server is ready at {address}", flush=True)
        await stop.wait()
    if as_json:
        print_json_line({"event": "stopped", "why": ""})
