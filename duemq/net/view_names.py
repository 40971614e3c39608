"""Names of the views that clients request (9001): `PLUGIN.VIEW`, or a name of the broker's own."""

from __future__ import annotations

from typing import Final

LEVELS_VIEW: Final = "schedule_service.levels"
LEVELS_LIST_VIEW: Final = "schedule_service.list"
LEVELS_FORECAST_VIEW: Final = "schedule_service.forecast"
LEVELS_HISTORY_VIEW: Final = "schedule_service.history"
TIMERS_VIEW: Final = "timer_store.summary"
TIMERS_LIST_VIEW: Final = "timer_store.list"
TIMERS_HISTORY_VIEW: Final = "timer_store.history"
TIMERS_FORECAST_VIEW: Final = "timer_store.forecast"
SCHEDULES_LIST_VIEW: Final = "recurring_schedules.list"
SCHEDULE_VIEW: Final = "recurring_schedules.show"
AUDITS_VIEW: Final = "reconciliation.status"
REPLICATION_VIEW: Final = "replication"
CONFIGURATION_VIEW: Final = "configuration"
OPERATORS_VIEW: Final = "accounts.audit"
RIGHTS_VIEW: Final = "accounts.rights"
