"""Admin: brokers, topics, groups, messages, dead letters, quarantine, schedules, migrations.

async with Admin("127.0.0.1:9876") as admin:
    for group in await admin.groups():
        print(group.name, (await admin.group(group.name)).lag)
"""

from __future__ import annotations

from duemq.client.admin.migrations import MigrationsAdmin
from duemq.client.admin.schedules import SchedulesAdmin
from duemq.client.admin.undelivered import UndeliveredAdmin


class Admin(UndeliveredAdmin, SchedulesAdmin, MigrationsAdmin):
    """Administration of DueMQ's and Apache's brokers, from 4.9 on; an async context manager.

    Args:
        namesrv, broker, tls, credentials, timeout_s, clock: As in `Client`.
        client: Client to share; then the arguments of a client are not used.
    """
