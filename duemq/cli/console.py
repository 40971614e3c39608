"""`duemq console`: console and HTTP API of a cluster, until a signal arrives."""

from __future__ import annotations

import asyncio
from pathlib import Path

from duemq.cli.options import Target
from duemq.cli.output import print_json_line
from duemq.cli.serve import EarlySignals, on_signals, run_loop, set_up_logging
from duemq.client import Client, Credentials
from duemq.console.application import console_routes
from duemq.http.standalone import ConsoleOptions, serving_console


def serve_console(target: Target, options: ConsoleOptions, logging: Path | None) -> None:
    """Serve the API until SIGTERM or SIGINT."""
    EarlySignals()
    set_up_logging(logging)
    run_loop(_run(target, options))


async def _run(target: Target, options: ConsoleOptions) -> None:
    stop = asyncio.Event()
    on_signals(lambda name: stop.set())
    tls, own = target.tls_context(), target.credentials()
    namesrv = "" if target.broker else target.namesrv
    target.client()  # checks the addresses

    def connect(credentials: Credentials | None) -> Client:
        account = credentials or (None if options.has_accounts else own)
        name = target.broker  # its address stands for its name
        return Client(namesrv, broker=target.broker, broker_name=name, tls=tls, credentials=account)

    async with serving_console(connect, options, console_routes) as port:
        scheme = "https" if options.certificate else "http"
        console = f"{scheme}://{options.host}:{port}/"
        address = f"{console}api/v1"
        if target.as_json:
            print_json_line({"event": "ready", "address": address, "console": console})
        else:
            print(f"the console is ready at {console}, the HTTP API at {address}", flush=True)
        await stop.wait()
