"""The lines of the how-to page of the HTTP API run at a broker."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.duemq.http.rig import api
from tests.support.packages import TOP

PAGE = TOP / "docs" / "how-to" / "http-api.md"


def test_every_line_of_the_page_succeeds(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) > 15

    async def main() -> None:
        async with api(tmp_path, timerMaxDelaySec=str(10**8)) as (broker, _):
            for line in lines:
                command = line.replace(":8088", f":{broker.console_port}")
                process = await asyncio.create_subprocess_exec(
                    "bash", "-c", command, stdout=-1, stderr=-1
                )
                out, error = await process.communicate()
                assert process.returncode == 0, (line, out, error)

    asyncio.run(main())
