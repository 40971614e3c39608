"""Tables that Apache 5.3 and later keep in RocksDB: a store with them is refused.

    storeType=defaultRocksDB            config/topics, config/subscriptionGroups,
                                        config/consumerOffsets; one directory config/metadata with
                                        useSingleRocksDBForAllConfigs
    popConsumerKVServiceEnable          kvStore: messages in flight of POP

The JSON files can be older, so a start with these would lose topics, groups and offsets.

Source: RocksDBConfigManager, PopConsumerService
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from duemq_common.errors import ConfigError
from duemq_common.existence import exists
from message_store.queues.apache_names import ROCKSDB_FILE, ROCKSDB_TABLES

POPS: Final = "kvStore"
EXPORT: Final = (
    "which this broker cannot read, and its JSON files may be old. Start Apache's broker, write "
    "them with `mqadmin rocksDBConfigToJson` (request 355), stop it, and move {names} away"
)
WRITE_BACK: Final = (
    "which this broker cannot read. Start Apache's broker, write them to the log with request "
    "200056 (POP_ROLLBACK), stop it, and move kvStore away"
)


def check_tables(root: Path) -> None:
    """Check that no table of a store is in RocksDB.

    Raises:
        ConfigError: One is; the text names the request that exports it.
    """
    tables = [
        f"config/{name}" for name in ROCKSDB_TABLES if exists(root / "config" / name / ROCKSDB_FILE)
    ]
    if tables:
        names = ", ".join(tables)
        text = f"topics, groups or offsets of this store are in RocksDB ({names}), "
        raise ConfigError("storePathRootDir", str(root), text + EXPORT.format(names=names))
    if exists(root / POPS / ROCKSDB_FILE):
        text = f"popped messages of this store are in RocksDB ({POPS}), "
        raise ConfigError("storePathRootDir", str(root), text + WRITE_BACK)
