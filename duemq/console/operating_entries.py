"""Pages about the operation of brokers."""

from __future__ import annotations

from typing import Final

from duemq.console.call import PageEntry
from duemq.console.logins import LoginRole
from duemq.console.pages import audits, dead_letters, migrations, quarantine
from duemq.console.pages.configuration import configuration
from duemq.console.pages.levels import levels
from duemq.console.pages.operators import operators
from duemq.console.pages.replicas import replicas

OPERATING_ENTRIES: Final = (
    PageEntry("/levels", "nav.levels", levels),
    PageEntry("/migrations", "nav.migrations", migrations.migrations),
    PageEntry("/migrations/{name:path}", "", migrations.commands, LoginRole.ADMIN),
    PageEntry(
        "/migration-commands",
        "",
        migrations.confirmation,
        LoginRole.ADMIN,
        migrations.command,
    ),
    PageEntry("/quarantine", "nav.quarantine", quarantine.quarantine),
    PageEntry("/quarantine/{name:path}", "", quarantine.quarantined_message),
    PageEntry(
        "/quarantine-resend",
        "",
        quarantine.resend_confirmation,
        LoginRole.OPERATOR,
        quarantine.resend,
    ),
    PageEntry("/dead-letters", "nav.dead_letters", dead_letters.dead_letters),
    PageEntry("/dead-letters/{name:path}", "", dead_letters.letters_of_group),
    PageEntry(
        "/dead-letter-resend",
        "",
        dead_letters.resend_confirmation,
        LoginRole.OPERATOR,
        dead_letters.resend,
    ),
    PageEntry("/audits", "nav.audits", audits.audits),
    PageEntry("/audits/{name:path}", "", audits.audit),
    PageEntry("/replicas", "nav.replicas", replicas),
    PageEntry("/configuration", "nav.configuration", configuration),
    PageEntry("/operators", "nav.operators", operators, LoginRole.ADMIN),
)
