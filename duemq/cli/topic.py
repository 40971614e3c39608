"""`duemq topic` commands; each imports its modules when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.admin_options import TopicOptions, Update
from duemq.cli.command import command
from duemq.cli.groups import group
from duemq.cli.options import Brokers, DryRun, Target, Yes

topic_app = group()
Topic = Annotated[str, typer.Argument(help="Topic.", show_default=False)]


@command(topic_app, "list", example="topic list --all")
def list_topics(
    everything: Annotated[
        bool,
        typer.Option("--all", "-a", help="Also internal topics, retries and dead letters."),
    ] = False,
    *,
    target: Target,
) -> None:
    """Show the topics with their queues, permissions and attributes."""
    from duemq.cli.topic_show import show_topics

    show_topics(target, everything=everything)


@command(topic_app, example="topic show orders")
def show(topic: Topic, *, target: Target) -> None:
    """Show a topic: settings by broker, offsets of its queues, groups that read it."""
    from duemq.cli.topic_show import show_topic

    show_topic(topic, target)


@command(topic_app, example="topic create orders --queues 16 --type DELAY")
def create(
    topic: Topic,
    update: Update = False,
    brokers: Brokers = None,
    dry_run: DryRun = False,
    *,
    options: TopicOptions,
    target: Target,
) -> None:
    """Create a topic at all brokers; a topic with the same settings stays as it is."""
    from duemq.cli.settings_change import change_settings
    from duemq.cli.topic_change import topic_kind

    kind = topic_kind(options)
    change_settings(kind, topic, brokers or [], target, update=update, dry_run=dry_run)


@command(topic_app, example="topic delete orders --dry-run")
def delete(topic: Topic, dry_run: DryRun = False, yes: Yes = False, *, target: Target) -> None:
    """Delete a topic with its messages and offsets at all brokers and name servers."""
    from duemq.cli.topic_change import delete_topic

    delete_topic(topic, target, dry_run=dry_run, yes=yes)
