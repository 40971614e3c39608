"""`duemq reconcile`: what became of every scheduled message of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker.cli.options import AsJson

reconcile_app = typer.Typer(no_args_is_help=True, help="Prove what became of every message.")


@reconcile_app.command("run")
def run(
    stores: Annotated[
        list[str], typer.Argument(help="Store directories or URLs, of DueMQ or Apache.")
    ],
    late: Annotated[int, typer.Option(metavar="MS", help="So late is still ok.", min=0)] = 2_000,
    as_of: Annotated[
        str, typer.Option("--as-of", metavar="TIME", help="Due by then; default: newest record.")
    ] = "",
    levels: Annotated[
        str, typer.Option(metavar="LEVELS", help="messageDelayLevel; needed if queues are lost.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the verdicts there, as Parquet.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report there, as HTML.")
    ] = None,
    cores: Annotated[int, typer.Option(help="Tasks at once; 0: one for each core.", min=0)] = 0,
    memory: Annotated[str, typer.Option(help="Of the Java process.")] = "2g",
    spark_log: Annotated[
        str, typer.Option("--spark-log", metavar="LEVEL", help="Show Spark's log from here on.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Audit stores. Exit 0: every promise kept; 1: there are findings; 2: it could not run."""
    from broker.cli.reconcile_run import Wanted, reconcile

    wanted = Wanted(tuple(stores), late, as_of, levels, out, report, cores, memory, spark_log)
    reconcile(wanted, as_json=as_json)
