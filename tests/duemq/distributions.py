"""Installs a small distribution with a plugin into a directory, as pip would."""

from __future__ import annotations

from pathlib import Path

from delayed_delivery.plugin import ENTRY_POINT_GROUP


def install(
    directory: Path, name: str, source: str, *, plugin: str = "", factory: str = "create_plugin"
) -> Path:
    """Write the distribution `name` with one module of that name; return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.py").write_text(source)
    info = directory / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    entry = f"[{ENTRY_POINT_GROUP}]\n{plugin or name} = {name}:{factory}\n"
    (info / "entry_points.txt").write_text(entry)
    return directory


COUNTING_PLUGIN = '''
"""A third party's plugin: refuses a word, counts, answers a code, runs a task."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass

from duemq_common.config import from_properties, option
from delayed_delivery.plugin import PluginBase, SystemTopic
from duemq_common.request import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingConfig:
    word: str = option(
        "forbidden", key="countingWord", doc="Refused.", own=True, live=True, wire=True
    )


class CountingPlugin(PluginBase):
    name = "counting"

    def __init__(self, host):
        self.host = host
        self.config = from_properties(CountingConfig, host.properties)
        self.counted = 0
        self.task_ran = False

    def config_class(self):
        return CountingConfig

    def system_topics(self):
        return [SystemTopic("COUNTING_TOPIC", 2)]

    def put_hooks(self):
        return [self.refuse]

    def refuse(self, batch, now_ms):
        for row in range(batch.count):
            if self.config.word.encode() in batch.body(row):
                batch.refuse(row, 13, f"{self.config.word} is not taken")

    def dispatchers(self):
        return [self.count]

    def count(self, batch):
        self.counted += int((batch.filled["status"] == 0).sum())

    def request_handlers(self):
        return {9100: self.answer}

    async def answer(self, request):
        return Response(fields={"counted": str(self.counted), "task": str(self.task_ran)})

    def admin_views(self):
        return {"count": lambda: {"counted": self.counted}}

    def reconfigure(self, properties):
        self.config = from_properties(CountingConfig, properties)

    @asynccontextmanager
    async def running(self, store):
        async def work():
            self.task_ran = True

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work())
            yield


def create_plugin(host):
    return CountingPlugin(host)
'''
