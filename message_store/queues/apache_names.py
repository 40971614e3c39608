"""Names by which queues and tables of Apache's brokers that have another form are recognized."""

from __future__ import annotations

LIGHT_QUEUES = "%LMQ%"  # Apache's light queues, whose units point at other queues' records
# With storeType=defaultRocksDB, Apache has these tables and all queues in RocksDB. A database with
# rocksdbCQDoubleWriteEnable is only a copy of the queues' files.
ROCKSDB_TABLES = ("topics", "subscriptionGroups", "consumerOffsets", "metadata")  # in config
ROCKSDB_FILE = "CURRENT"  # the file that each RocksDB directory has
