"""Calls that the workload does not reach, with the reason for their exclusion from the campaign.

A key is a file, or a file and a call (`file call`).
"""

from __future__ import annotations

from typing import Final

from tests.storage_faults.call_sites import Site

AFTER_ERROR: Final = "cleans up after another error; reached when that is injected"
NOT_OURS: Final = "reads a stopped store on request and changes nothing"
CUT_LOG: Final = "only after the log was cut; tests/message_store/replication/test_truncation.py"
UNREACHED: Final = {
    "duemq/auth/": "accounts are off; tests/duemq/auth/test_accounts_file.py",
    "duemq/client/": "runs in applications, not in a broker",
    "duemq/broker/member_broker.py": "there is no controller; tests/failover",
    "duemq/replication/": "there are no replicas; tests/duemq/replication/test_epoch_file.py",
    "duemq/http/openapi.py": "reads a file of the package; tests/duemq/http/test_openapi.py",
    "duemq/registry/table_file.py ftruncate": AFTER_ERROR,
    "duemq/registry/table_file.py read_bytes": "a start finds changes only after a kill between "
    "two writes; tests/duemq/registry/test_table_file.py",
    "duemq_common/config_text.py": "configuration, read before the store is opened",
    "duemq_common/memory/huge_pages.py": "reads the process's own memory map, ten seconds after "
    "the start; tests/duemq_common/memory/test_huge_pages.py",
    "message_store/index/index_file.py unlink": AFTER_ERROR,
    "message_store/index/index_service.py unlink": AFTER_ERROR,
    "message_store/log/block_sums.py open": CUT_LOG,
    "message_store/log/block_sums.py fsync": CUT_LOG,
    "message_store/log/block_sums.py pwrite": CUT_LOG,
    "message_store/log/block_sums.py unlink": CUT_LOG,
    "message_store/log/commit_log.py unlink": AFTER_ERROR,
    "message_store/log/commit_log.py pwritev": "continues after a short write; reached when one "
    "is injected",
    "message_store/log/gaps.py": "bridges a damaged record; tests/message_store/log/test_gaps.py",
    "message_store/log/page_guard.py": "replaces a page that a disk cannot read; "
    "tests/message_store/log/test_page_guard.py",
    "message_store/log/zeroing.py": "only on a file system without holes; "
    "tests/message_store/log/test_zeroing.py",
    "message_store/queues/consume_queue.py unlink": AFTER_ERROR,
    "message_store/queues/lost_queues.py open": "a queue whose file cannot be written; reached "
    "when that is injected",
    "message_store/queues/queue_sums.py open": "renews the checksum of a block that a crash or a "
    "disk has changed; tests/message_store/queues/test_queue_sums.py",
    "message_store/queues/queue_sums.py pwrite": "renews the checksum of a block that a crash or a "
    "disk has changed; tests/message_store/queues/test_queue_sums.py",
    "message_store/queues/queue_sums.py unlink": "no queue file is removed; "
    "tests/message_store/queues/test_queue_sums.py",
    "message_store/recovery/checkpoint.py": AFTER_ERROR,
    "message_store/recovery/store_lock.py open": "a reader tests whether a broker runs; "
    "tests/duemq/cli/test_reconcile.py",
    "message_store/recovery/truncated_bytes.py": "no log is truncated; "
    "tests/message_store/replication/test_truncation.py",
    "message_store/store_copy.py": "copies a store on request; "
    "tests/message_store/test_store_copy.py",
    "message_store/verify/": NOT_OURS,
    "migration/duemq_migration/ownership/projection.py read_text": CUT_LOG,
    "migration/duemq_migration/plans/plan_files.py": (
        "no migration runs; tests/migration/test_full_disk.py"
    ),
    "schedule_service/recovery.py read_text": CUT_LOG,
    "timer_store/enqueue/adoption.py unlink": "removes snapshots of an Apache broker's wheel",
    "timer_store/log/wheel.py": "moves a damaged wheel aside; tests/timer_store/log/test_wheel.py",
    "timer_store/verify.py": NOT_OURS,
}
NO_DISK: Final = frozenset(
    {
        "timer_store/enqueue/transfers.py rename",  # of records in memory
        "timer_store/log/units.py unlink",  # a kernel: takes a unit out of its chain
    }
)
"""Calls that have the name of a function that reaches a disk, but do not reach a disk."""


def reason_for(site: Site) -> str:
    """Return the reason why a call is not reached; empty: none."""
    full = f"{site.file} {site.call}"
    for key, reason in UNREACHED.items():
        if full == key or site.file == key or (key.endswith("/") and full.startswith(key)):
            return reason
    return "no call to a disk" if full in NO_DISK else ""
