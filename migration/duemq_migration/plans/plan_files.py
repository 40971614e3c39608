"""Saved plans: one JSON file per plan in `config/duemq.plans`; only the newest are kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from duemq_common import config_sums
from duemq_common.existence import exists
from duemq_common.json_dialect import write_config
from duemq_migration.plans.plan import Plan, PlanError, from_json, to_json

DIRECTORY: Final = "duemq.plans"
KEPT_MAX: Final = 32
_ID: Final = re.compile(r"plan-[0-9a-z-]{1,40}")


class PlanFiles:
    """Directory of one store's plans.

    Args:
        config_directory: `<store>/config`.
    """

    def __init__(self, config_directory: Path) -> None:
        self._directory = config_directory / DIRECTORY

    def save(self, plan: Plan) -> None:
        """Save a plan, and delete all but the newest plans.

        Raises:
            OSError: The disk refused it.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        write_config(self._directory / f"{plan.plan_id}.json", to_json(plan))
        for name in self.names()[:-KEPT_MAX]:
            (self._directory / f"{name}.json").unlink(missing_ok=True)
            (self._directory / f"{name}.json.bak").unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the ids of the plans, newest last."""
        return sorted(path.stem for path in self._directory.glob("plan-*.json"))

    def load(self, plan_id: str) -> Plan:
        """Return a plan.

        Raises:
            PlanError: No plan has this id, or its file cannot be read.
        """
        path = self._directory / f"{plan_id}.json"
        if not _ID.fullmatch(plan_id) or not exists(path):
            raise PlanError(plan_id, "this broker has no such plan")
        try:
            data = config_sums.checked(path, path.read_bytes())
        except (OSError, ValueError) as error:
            raise PlanError(plan_id, f"{path} cannot be read ({error})") from error
        return from_json(data, source=str(path))
