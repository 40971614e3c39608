"""Progress of groups: the file, commits, resets, cleaning."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.net.memory import MemoryBudget
from duemq.registry import consumer_offsets as offsets_module
from duemq.registry.config_file import ConfigFile
from duemq.registry.consumer_offsets import (
    COMMITS_PER_VERSION,
    POPS_SPAN_BYTES,
    OffsetManager,
)
from duemq.registry.offset_table import FREE_QUEUES, OFFSET_BYTES, PopState
from duemq.registry.verify import KIND, OFFSETS
from duemq_common import json_dialect
from duemq_common.clock import FakeClock
from duemq_common.errors import CorruptStore, RequestError
from duemq_common.topics import HALF_TOPIC, INTERNAL_GROUP_PREFIX, REVIVE_PREFIX
from message_store.queues.topic_table import QUEUES_MAX
from message_store.store import MessageStore
from message_store.verify import verify_store
from tests.support.golden_stores import copy_golden_store
from tests.support.stores import open_store, put_one
from tests.support.topic_removal import remove_topic


def manager(root: Path) -> OffsetManager:
    offsets = OffsetManager(ConfigFile(root / "consumerOffset.json"), FakeClock())
    offsets.load()
    return offsets


@pytest.fixture
def offsets(tmp_path: Path) -> OffsetManager:
    return manager(tmp_path)


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_apaches_file_is_read_and_written(version: str, tmp_path: Path) -> None:
    config = copy_golden_store(f"apache-{version}-clean", tmp_path) / "config"
    reported = json_dialect.loads((config / "consumerOffset.json").read_text())
    offsets = manager(config)
    assert offsets.offset_table() == reported["offsetTable"]
    assert offsets.query("golden_consumer", "GoldenDelay", 3) == 3
    mine = json_dialect.loads(json_dialect.dumps(offsets.to_json()))
    assert mine["offsetTable"] == reported["offsetTable"]
    if version == "5.3.3":
        assert mine["dataVersion"] == reported["dataVersion"]
        groups = {group: sorted(topics) for group, topics in reported["groupTopicMap"].items()}
        assert {group: sorted(t) for group, t in mine["groupTopicMap"].items()} == groups


def test_numbers_stand_on_one_line_as_apache_writes_them(offsets: OffsetManager) -> None:
    for queue_id in (0, 1):
        offsets.commit("G", "T", queue_id, 5 + queue_id)
    assert '"T@G":{0:5,1:6\n\t\t}' in json_dialect.dumps(offsets.to_json())


def test_what_a_commit_of_pops_adds_is_in_the_same_table(offsets: OffsetManager) -> None:
    """Asking for the state of pops commits those that are confirmed by now."""

    def pops() -> PopState:
        offsets.commit("G", "T", 0, 5)
        return PopState(700, {28: 300})

    offsets.pops = pops
    table = offsets.to_json()
    assert table["offsetTable"] == {"T@G": {0: 5}}
    assert table["pops"] == {"before": 700, "first_needed": {28: 300}, "latest_ms": 0}


def test_the_state_of_pops_is_kept_and_unknown_in_apaches_file(tmp_path: Path) -> None:
    offsets = manager(tmp_path)
    assert offsets.pops() == PopState(0, {})  # no file: everything is in the log
    offsets.pops = lambda: PopState(700, {28: 300})
    offsets.commit("G", "T", 0, 5)
    offsets.persist()
    assert manager(tmp_path).pops() == PopState(700, {28: 300})
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{}}')
    (tmp_path / "consumerOffset.json.bak").unlink(missing_ok=True)
    assert manager(tmp_path).pops() is None


def test_the_file_follows_a_log_that_grows_without_commits(tmp_path: Path) -> None:
    """So that a start does not search all of it for pops."""
    offsets, end = manager(tmp_path), 0
    offsets.pops = lambda: PopState(end, {})
    asyncio.run(offsets.save())
    for grown, written in (
        (POPS_SPAN_BYTES, 0),
        (1, POPS_SPAN_BYTES + 1),
        (9, POPS_SPAN_BYTES + 1),
    ):
        end += grown
        asyncio.run(offsets.save())
        state = manager(tmp_path).pops()
        assert state is not None
        assert state.before == written
    end += POPS_SPAN_BYTES
    offsets.persist()
    assert manager(tmp_path).pops() == PopState(end, {})


@pytest.mark.parametrize("pops", [1, {}, {"before": 1}, {"before": "x", "first_needed": {}}])
def test_a_malformed_state_of_pops_stops_the_broker(tmp_path: Path, pops: Any) -> None:
    (tmp_path / "consumerOffset.json").write_text(json_dialect.dumps({"pops": pops}))
    with pytest.raises(CorruptStore, match="pops"):
        manager(tmp_path)


@pytest.mark.parametrize(
    "table",
    [[1], {"T": {}}, {"T@G": [1]}, {"T@G": {"x": 1}}, {"T@G": {0: "x"}}, {"T@G": {0: True}}],
)
def test_a_file_that_cannot_be_used_stops_the_broker(tmp_path: Path, table: Any) -> None:
    (tmp_path / "consumerOffset.json").write_text(json_dialect.dumps({"offsetTable": table}))
    with pytest.raises(CorruptStore, match=r"consumerOffset\.json"):
        manager(tmp_path)


def test_unknown_members_survive(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text('{"later":[1],"offsetTable":{"T@G":{"0":7}}}')
    offsets = manager(tmp_path)
    offsets.commit("G", "T", 1, 8)
    offsets.persist()
    written = json_dialect.loads(path.read_text())
    assert (written["later"], written["offsetTable"]) == ([1], {"T@G": {0: 7, 1: 8}})


def test_progress_survives_a_restart(tmp_path: Path, offsets: OffsetManager) -> None:
    offsets.commit("G", "T", 0, 9)
    offsets.commit("G", "T", 0, 4)  # backwards is allowed
    asyncio.run(offsets.save())
    assert manager(tmp_path).query("G", "T", 0) == 4


def test_unchanged_progress_is_not_written(tmp_path: Path, offsets: OffsetManager) -> None:
    path = tmp_path / "consumerOffset.json"
    offsets.persist()
    path.unlink()
    offsets.persist()
    asyncio.run(offsets.save())
    assert not path.exists()


def test_a_refused_save_is_tried_again(
    tmp_path: Path, offsets: OffsetManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError("full")

    offsets.commit("G", "T", 0, 9)
    with monkeypatch.context() as patch:
        patch.setattr(json_dialect, "write_config", full)
        with pytest.raises(OSError, match="full"):
            asyncio.run(offsets.save())
    offsets.persist()
    assert manager(tmp_path).query("G", "T", 0) == 9


@pytest.mark.parametrize("queue_id", [-1, 65_536, 1 << 40])
def test_queues_that_cannot_be(offsets: OffsetManager, queue_id: int) -> None:
    for put in (offsets.commit, offsets.commit_pull, offsets.set_reset):
        with pytest.raises(RequestError):
            put("G", "T", queue_id, 1)


def test_pull_progress_is_apart(offsets: OffsetManager) -> None:
    offsets.commit_pull("G", "T", 0, 9)
    assert (offsets.query("G", "T", 0), offsets.query_pull("G", "T", 0)) == (None, 9)
    assert offsets.topics_of("G") == []


def test_a_reset_waits_until_it_is_taken(tmp_path: Path, offsets: OffsetManager) -> None:
    offsets.commit("G", "T", 0, 9)
    offsets.set_reset("G", "T", 0, 2)
    assert offsets.pending_reset("G", "T", 0) == 2
    offsets.commit("G", "T", 0, 10)  # a late commit of a member
    assert offsets.query("G", "T", 0) == 2
    assert offsets.take_reset("G", "T", 0) == 2
    assert offsets.take_reset("G", "T", 0) is None
    assert offsets.query("G", "T", 0) == 10


def test_a_reset_survives_a_restart_as_progress(tmp_path: Path, offsets: OffsetManager) -> None:
    offsets.set_reset("G", "T", 0, 2)
    offsets.persist()
    again = manager(tmp_path)
    assert (again.query("G", "T", 0), again.pending_reset("G", "T", 0)) == (2, None)


def test_resets_of_other_queues_stay(offsets: OffsetManager) -> None:
    offsets.set_reset("G", "T", 0, 2)
    offsets.set_reset("G", "T", 1, 3)
    assert offsets.take_reset("G", "T", 5) is None
    assert offsets.take_reset("G", "T", 0) == 2
    assert offsets.pending_reset("G", "T", 1) == 3


def test_every_500_commits_are_a_new_version(offsets: OffsetManager) -> None:
    before = offsets.version.counter
    for number in range(COMMITS_PER_VERSION * 2 + 1):
        offsets.commit("G", "T", 0, number)
    assert offsets.version.counter == before + 2


def test_a_masters_offsets_from_before_a_deletion_are_not_used(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        put_one(store, "T")
        master, replica = (
            OffsetManager(ConfigFile(tmp_path / name), FakeClock(), store) for name in ("m", "r")
        )
        for topic in "TU":
            master.commit("G", topic, 0, 1)
        before = json_dialect.loads(json_dialect.dumps(master.to_json()))
        remove_topic(store, "T")
        put_one(store, "T")
        replica.replace_by(before)
        assert replica.offset_table() == {"U@G": {0: 1}}
        replica.replace_by(json_dialect.loads(json_dialect.dumps(master.to_json())))
        assert replica.offset_table() == {"T@G": {0: 1}, "U@G": {0: 1}}


KEYS = st.tuples(st.sampled_from("GH"), st.sampled_from("TU"), st.integers(0, 2))


@given(
    commits=st.lists(st.tuples(KEYS, st.integers(0, 99)), max_size=20),
    cleaned=st.lists(st.tuples(st.booleans(), st.sampled_from("GHTU")), max_size=3),
)
def test_against_a_plain_dictionary(
    tmp_path_factory: pytest.TempPathFactory, commits: Any, cleaned: Any
) -> None:
    offsets = manager(tmp_path_factory.mktemp("offsets"))
    naive: dict[tuple[str, str, int], int] = {}
    for key, offset in commits:
        group, topic, queue_id = key
        offsets.commit(group, topic, queue_id, offset)
        naive[key] = offset
    for by_group, name in cleaned:
        (offsets.remove_group if by_group else offsets.remove_topic)(name)
        naive = {k: v for k, v in naive.items() if (k[0] if by_group else k[1]) != name}
    for group in "GH":
        found = {(group, t, q): n for t in "TU" for q, n in offsets.of_pair(group, t)[0].items()}
        assert found == {key: n for key, n in naive.items() if key[0] == group}
        assert offsets.topics_of(group) == sorted({k[1] for k in naive if k[0] == group})
    for topic in "TU":
        assert offsets.groups_of(topic) == sorted({k[0] for k in naive if k[1] == topic})


def test_clone_copies_progress(offsets: OffsetManager) -> None:
    offsets.commit("G", "T", 0, 9)
    offsets.commit("G", "T", 1, 8)
    offsets.clone("G", "H", "T")
    offsets.clone("absent", "H", "T")
    assert offsets.of_pair("H", "T")[0] == {0: 9, 1: 8}


@pytest.mark.finding("E8")
def test_a_large_table_is_copied_in_short_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets that are committed or removed between two turns do not disturb the copy."""
    monkeypatch.setattr(offsets_module, "PAIRS_PER_TURN", 10)
    offsets = OffsetManager(ConfigFile(tmp_path / "consumerOffset.json"), FakeClock())
    offsets.load()
    for n in range(100):
        offsets.commit(f"g{n}", "t", 0, n)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            if turns == 2:
                offsets.remove_group("g99")
                offsets.commit("new", "t", 0, 5)
            await asyncio.sleep(0)

    async def main() -> None:
        task = asyncio.create_task(other())
        await offsets.save()
        task.cancel()
        assert turns >= 10
        await offsets.save()  # what came meanwhile

    asyncio.run(main())
    again = OffsetManager(ConfigFile(tmp_path / "consumerOffset.json"), FakeClock())
    again.load()
    assert again.offset_table() == offsets.offset_table()
    assert again.query("new", "t", 0) == 5
    assert again.query("g99", "t", 0) is None
    assert (tmp_path / "consumerOffset.json").read_text() == json_dialect.dumps(offsets.to_json())


@pytest.mark.finding("E8")
def test_the_number_of_offsets_is_bounded_by_its_key(tmp_path: Path) -> None:
    offsets = OffsetManager(ConfigFile(tmp_path / "o.json"), FakeClock(), pairs_max=2)
    for group in ("a", "b", "a"):
        offsets.commit(group, "t", 0, 1)
    with pytest.raises(RequestError, match="consumerOffsetsMax=2"):
        offsets.commit("c", "t", 0, 1)


def test_the_progress_of_the_broker_is_stored_in_a_full_table(tmp_path: Path) -> None:
    """Its refusal ended the revival of pops, and with it the broker."""
    offsets = OffsetManager(ConfigFile(tmp_path / "o.json"), FakeClock(), pairs_max=0)
    for topic in (HALF_TOPIC, f"{REVIVE_PREFIX}DefaultCluster"):
        offsets.commit(f"{INTERNAL_GROUP_PREFIX}x", topic, 0, 7)
        assert offsets.query(f"{INTERNAL_GROUP_PREFIX}x", topic, 0) == 7
    with pytest.raises(
        RequestError, match="consumerOffsetsMax=0"
    ):  # a client may name such a group
        offsets.commit(f"{INTERNAL_GROUP_PREFIX}x", "t", 0, 7)


@pytest.mark.finding("3S3")
def test_offsets_of_invented_queues_count_in_the_memory_budget(tmp_path: Path) -> None:
    memory = MemoryBudget(64 * OFFSET_BYTES)
    offsets = OffsetManager(ConfigFile(tmp_path / "o.json"), FakeClock(), memory=memory)
    for queue_id in range(FREE_QUEUES):
        offsets.commit("g", "t", queue_id, 1)
    assert memory.used_bytes == 0
    for queue_id in range(FREE_QUEUES, FREE_QUEUES + 48):
        offsets.commit("g", "t", queue_id, 1)
    assert memory.used_bytes == 48 * OFFSET_BYTES
    with pytest.raises(RequestError, match="remotingMemoryMax"):
        offsets.commit("g", "t", QUEUES_MAX - 1, 1)
    offsets.commit("g", "t", FREE_QUEUES, 2)  # known queues and other groups are not refused
    offsets.commit("h", "t", 0, 2)
    offsets.commit("CID_RMQ_SYS_TRANS", "t", 0, 1)
    offsets.persist()
    later = MemoryBudget()
    again = OffsetManager(ConfigFile(tmp_path / "o.json"), FakeClock(), memory=later)
    again.load()
    assert later.used_bytes == 48 * OFFSET_BYTES
    offsets.remove_group("g")
    again.remove_group("g")
    assert (memory.used_bytes, later.used_bytes) == (0, 0)
    for queue_id in range(FREE_QUEUES + 2):
        offsets.set_reset("g", "t", queue_id, 1)
    assert memory.used_bytes == 4 * OFFSET_BYTES
    for queue_id in range(FREE_QUEUES + 2):
        offsets.take_reset("g", "t", queue_id)
    assert memory.used_bytes == 2 * OFFSET_BYTES


@pytest.mark.finding("3D4")
def test_only_changed_progress_of_internal_groups_is_derived_again(tmp_path: Path) -> None:
    path, groups = tmp_path / "consumerOffset.json", ("CID_RMQ_SYS_TRANS",)
    offsets = manager(tmp_path)
    offsets.commit(groups[0], "HALF", 0, 7)
    offsets.commit("G", "T", 0, 5)
    offsets.pops = lambda: PopState(700, {28: 300})
    offsets.persist()
    text = path.read_text()
    for change, kept in (
        (("T@G", {0: 99}), True),  # operators reset groups in this way
        (("HALF@CID_RMQ_SYS_TRANS", {0: 8}), False),
        (("HALF@CID_RMQ_SYS_TRANS", {}), False),
        (("HALF@CID_RMQ_SYS_REVIVE_GROUP", {3: 1}), False),
    ):
        value = json_dialect.loads(text)
        value["offsetTable"][change[0]] = change[1]
        path.write_text(json_dialect.dumps(value))
        found = manager(tmp_path)
        found.prove(groups)
        assert (found.query(groups[0], "HALF", 0) == 7) == kept
        assert found.pops() == (PopState(700, {28: 300}) if kept else PopState(0, {}))
        assert found.query("G", "T", 0) == (99 if change[0] == "T@G" else 5)
    path.write_text('{"offsetTable":{"HALF@CID_RMQ_SYS_TRANS":{0:4}}}')  # Apache's
    found = manager(tmp_path)
    found.prove(groups)
    assert found.query(groups[0], "HALF", 0) == 4


INTERNAL = "CID_RMQ_SYS_TRANS"


def opened(store: MessageStore) -> OffsetManager:
    """Return the offsets of an open store as a broker loads them."""
    file = ConfigFile(store.config_path("consumerOffset.json"))
    offsets = OffsetManager(file, FakeClock(), store)
    offsets.load()
    offsets.prove((INTERNAL,))
    offsets.follow(store, (INTERNAL,))
    return offsets


@pytest.mark.finding("3D4")
@pytest.mark.parametrize(
    ("bodies", "internal", "client", "severities"),
    [
        (b"aaaa", 2, 3, []),  # this log has the file's last record
        (b"bbbb", None, None, ["error"]),
        (
            b"bb",
            None,
            2,
            ["warning"],
        ),  # as an older copy of the store: the log may have lost its end
    ],
)
def test_a_table_names_the_last_record_of_its_log(
    tmp_path: Path, bodies: bytes, internal: int | None, client: int | None, severities: list[str]
) -> None:
    for name, each in (("file", b"aaaa"), ("log", bodies)):
        with open_store(tmp_path / name) as store:
            for body in each:
                put_one(store, "T", body=bytes([body]))
            if name == "file":
                offsets = opened(store)
                offsets.commit(INTERNAL, "T", 0, 2)
                offsets.commit("client", "T", 0, 3)
                offsets.persist()
    shutil.copy(tmp_path / "file/config/consumerOffset.json", tmp_path / "log/config")
    report = verify_store(tmp_path / "log", parts=[OFFSETS])
    assert [each.severity for each in report.findings if each.kind == KIND] == severities
    with open_store(tmp_path / "log") as store:
        offsets = opened(store)
        assert offsets.query(INTERNAL, "T", 0) == internal
        assert offsets.query("client", "T", 0) == client


def test_resets_of_deleted_topics_are_bounded(
    offsets: OffsetManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay until the next pull of their groups, which may never come."""
    monkeypatch.setattr("duemq.registry.consumer_offsets.RESTARTED_MAX", 3)
    for number in range(5):
        offsets.commit("G", f"T{number}", 0, 5)
        offsets.restart_topic(f"T{number}")
        offsets.restart_topic(f"U{number}")  # has no offsets
    assert [offsets.pending_reset("G", f"T{number}", 0) for number in range(5)] == [
        None,
        None,
        0,
        0,
        0,
    ]
    offsets.commit("G", "T2", 0, 7)
    offsets.restart_topic("T2")  # is the newest again
    offsets.commit("G", "T9", 0, 7)
    offsets.restart_topic("T9")
    assert [offsets.pending_reset("G", f"T{number}", 0) for number in (2, 3, 9)] == [0, None, 0]
