"""A broker whose file systems are read-only, except for its store: the root of a container."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from message_store.kernels import cache_directory
from message_store.kernels.registry import is_complete
from tests.support.commands import TIMEOUT_S, duemq, environment
from tests.support.requirements import Missing, need_commands, skip_without
from tests.support.running_broker import SMALL

SCRIPT = """
set -e
store=$1; shift
mount --bind "$store" "$store"
for point in / /tmp /dev/shm /var/tmp; do
    ! mountpoint -q $point || mount -o remount,ro,bind $point
done
! touch "$store/../file" 2>/dev/null
exec "$@"
"""


def test_a_broker_with_a_shipped_cache_writes_into_its_store_only(tmp_path: Path) -> None:
    with skip_without():
        need_commands("unshare", "mount", "mountpoint")
        mounts = subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True)
        if mounts.returncode:
            raise Missing("mount namespaces")
    if not is_complete():
        duemq("kernels", "warm")
    (tmp_path / "store").mkdir()
    keys = SMALL | {"embeddedNamesrvEnable": "true", "embeddedNamesrvPort": "0"}
    settings = [f"--set={key}={value}" for key, value in keys.items()]
    own = {
        "HOME": "/nonexistent",
        "XDG_CACHE_HOME": "",
        "DUEMQ_KERNEL_CACHE": str(cache_directory()),
        "DUEMQ_STORE_PATH_ROOT_DIR": str(tmp_path / "store"),
    }
    in_namespace = ("unshare", "-m", "bash", "-c", SCRIPT, "broker", str(tmp_path / "store"))
    broker = subprocess.Popen(
        [*in_namespace, sys.executable, "-m", "duemq", "broker", "--json", *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**own),
    )
    try:
        assert broker.stdout is not None
        line = broker.stdout.readline()
        assert line, broker.communicate()[1]
        ready = json.loads(line)
        assert duemq("send", "T", "x", "-n", ready["namesrv"]).returncode == 0
        broker.terminate()
        _, log = broker.communicate(timeout=TIMEOUT_S)
        assert broker.returncode == 0, log
        assert "ERROR" not in log
        assert "cannot be written" not in log
        assert (tmp_path / "store" / "commitlog").is_dir()
    finally:
        broker.kill()
        broker.communicate()
