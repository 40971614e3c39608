"""`duemq topic list` and `show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duemq.cli.options import Target
from duemq.cli.output import plural, print_json, print_table
from duemq.cli.times import time_cell
from duemq.client.admin.topics import QueueState, TopicInfo, TopicSettings, TopicState

COLUMNS = (
    "topic",
    "kind",
    "brokers",
    "#read queues",
    "#write queues",
    "permission",
    "attributes",
)
SETTINGS = ("broker", "#read queues", "#write queues", "permission", "attributes")
QUEUES = ("broker", "#queue", "#first", "#end", "#messages", "last message (UTC)")


def show_topics(target: Target, *, everything: bool) -> None:
    """Print the topics; without `everything`, those of applications."""
    topics = target.ask(lambda admin: admin.topics())
    shown = [topic for topic in topics if everything or topic.kind == "normal"]
    if target.as_json:
        print_json([plain_info(topic) for topic in shown])
        return
    title = f"{len(shown)} {plural(len(shown), 'topic')}"
    hidden = len(topics) - len(shown)
    title += f"; {hidden} internal, retry and dead letter topics with --all" if hidden else ""
    rows = [_row(topic) for topic in shown]
    print_table(title, COLUMNS, rows, optional=("attributes", "kind"))


def _row(topic: TopicInfo) -> tuple[object, ...]:
    settings = list(topic.settings.values())
    return (
        topic.name,
        topic.kind if topic.kind != "normal" else "",
        ", ".join(topic.settings),
        _range([each.read_queues for each in settings]),
        _range([each.write_queues for each in settings]),
        " ".join(sorted({each.permission for each in settings})),
        _attributes(settings[0].attributes),
    )


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _attributes(attributes: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(attributes.items()))


def show_topic(name: str, target: Target) -> None:
    """Print a topic with its queues and groups."""
    state = target.ask(lambda admin: admin.topic(name))
    if target.as_json:
        print_json(plain_state(state))
        return
    rows = [setting_row(broker, value) for broker, value in state.info.settings.items()]
    kind = "" if state.info.kind == "normal" else f", {state.info.kind}"
    title = f"{name}: {state.messages:,} {plural(state.messages, 'message')}{kind}"
    print_table(title, SETTINGS, rows)
    print_table("", QUEUES, [_queue_row(queue) for queue in state.queues])
    print_table(f"groups: {', '.join(state.groups) or 'none'}", ())


def setting_row(broker: str, value: TopicSettings) -> tuple[object, ...]:
    """Return the settings at a broker as a table row."""
    attributes = _attributes(value.attributes)
    return (broker, value.read_queues, value.write_queues, value.permission, attributes)


def _queue_row(state: QueueState) -> tuple[object, ...]:
    return (
        state.queue.broker_name,
        state.queue.queue_id,
        f"{state.min_offset:,}",
        f"{state.max_offset:,}",
        f"{state.messages:,}",
        time_cell(state.last_stored_at),
    )


def plain_settings(value: TopicSettings) -> dict[str, object]:
    """Return settings as plain data."""
    return {
        "read_queues": value.read_queues,
        "write_queues": value.write_queues,
        "permission": value.permission,
        "ordered": value.ordered,
        "attributes": dict(value.attributes),
    }


def plain_info(topic: TopicInfo) -> dict[str, object]:
    """Return a topic as plain data."""
    brokers = {broker: plain_settings(value) for broker, value in topic.settings.items()}
    return {"topic": topic.name, "kind": topic.kind, "brokers": brokers}


def plain_state(state: TopicState) -> dict[str, object]:
    """Return a topic with its queues and groups as plain data."""
    queues = [
        {
            "broker": each.queue.broker_name,
            "queue": each.queue.queue_id,
            "first": each.min_offset,
            "end": each.max_offset,
            "messages": each.messages,
            "last_stored": each.last_stored_at,
        }
        for each in state.queues
    ]
    groups = list(state.groups)
    return plain_info(state.info) | {"messages": state.messages, "queues": queues, "groups": groups}
