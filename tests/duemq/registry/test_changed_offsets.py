"""consumerOffset.json while offsets change: only changed rows are encoded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq.registry import consumer_offsets as offsets_module
from duemq.registry.consumer_offsets import COMMITS_PER_VERSION
from duemq_common import json_dialect
from duemq_common.topics import INTERNAL_GROUP_PREFIX
from tests.duemq.registry.test_consumer_offsets import manager
from tests.support.extended import examples
from tests.support.processor_time import thread_s

INTERNAL = f"{INTERNAL_GROUP_PREFIX}G"


def is_proved(root: Path) -> bool:
    """Return whether the checksum is that of the rows in the file."""
    offsets = manager(root)
    before = offsets.offset_table()
    offsets.prove([group for _, _, group in (key.partition("@") for key in before)])
    return offsets.offset_table() == before


Step = tuple[str, str, str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["commit"] * 6 + ["group", "topic", "replace", "save"]),
        st.sampled_from(["G", "H", INTERNAL]),
        st.sampled_from(["T", "U", 'q"']),
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(max_examples=examples(60))
@given(steps=STEPS)
def test_a_file_of_changed_rows_is_that_of_the_whole_table(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    """Each step runs in one turn of the event loop; saves take several turns meanwhile."""
    root = tmp_path_factory.mktemp("offsets")
    offsets = manager(root)

    def change(kind: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        if kind == "commit":
            offsets.commit(group, topic, queue_id, offset)
        elif kind == "group":
            offsets.remove_group(group)
        elif kind == "topic":
            offsets.remove_topic(topic)
        elif kind == "replace":
            offsets.replace_by({"offsetTable": {f"{topic}@{group}": {queue_id: offset}}})

    async def main() -> None:
        saving: asyncio.Task[None] | None = None
        for kind, *rest in steps:
            change(kind, *rest)
            if kind == "save" and (saving is None or saving.done()):
                saving = asyncio.create_task(offsets.save())
            await asyncio.sleep(0)
        if saving is not None:
            await saving
            assert is_proved(root)
        offsets.commit("last", "T", 0, 1)
        await offsets.save()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offsets_module, "PAIRS_PER_TURN", 1)
        asyncio.run(main())
    text = (root / "consumerOffset.json").read_text()
    assert text == json_dialect.dumps(offsets.to_json())
    assert manager(root).offset_table() == offsets.offset_table()


@pytest.mark.parametrize("change", ["commit", "replace"])
def test_a_change_of_encoded_rows_during_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(offsets_module, "PAIRS_PER_TURN", 1)
    offsets = manager(tmp_path)

    async def main() -> None:
        for group in (INTERNAL, "G", "H"):
            offsets.commit(group, "T", 0, 1)
        saving = asyncio.create_task(offsets.save())
        for _ in range(2):
            await asyncio.sleep(0)
        if change == "commit":
            offsets.commit(INTERNAL, "T", 0, 2)
        else:
            offsets.replace_by({"offsetTable": {f"T@{INTERNAL}": {0: 2}}})
        await saving

    asyncio.run(main())
    assert is_proved(tmp_path)
    again = manager(tmp_path)
    assert again.query(INTERNAL, "T", 0) == 2
    assert again.query("H", "T", 0) == (1 if change == "commit" else None)


def test_a_commit_of_the_same_offset_changes_nothing(tmp_path: Path) -> None:
    """Java clients commit the offsets of all their queues every 5 s, consumed or not."""
    offsets = manager(tmp_path)
    offsets.commit("G", "T", 0, 7)
    offsets.persist()
    written = (tmp_path / "consumerOffset.json").stat().st_mtime_ns
    version = offsets.version
    for _ in range(COMMITS_PER_VERSION):
        offsets.commit("G", "T", 0, 7)
    asyncio.run(offsets.save())
    assert (tmp_path / "consumerOffset.json").stat().st_mtime_ns == written
    assert offsets.version == version


def test_a_save_costs_the_event_loop_what_has_changed(tmp_path: Path) -> None:
    offsets = manager(tmp_path)

    def commit(pairs: int, offset: int) -> None:
        for number in range(pairs):
            offsets.commit(f"group-{number % 997}", f"topic-{number}", 0, offset)

    everything, something = [], []
    with asyncio.Runner() as loop:
        for offset in range(1, 6, 2):
            commit(20_000, offset)
            everything.append(thread_s(lambda: loop.run(offsets.save())))
            commit(20, offset + 1)
            something.append(thread_s(lambda: loop.run(offsets.save())))
    assert min(something) * 5 < min(everything)
