"""`duemq init`: write the shipped configuration file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from duemq_common.errors import UsageError

SHIPPED = "broker.conf"  # a link to config/broker.conf, so that the wheel contains the file


def write_configuration(file: Path) -> None:
    """Write the shipped broker.conf into a new file, and print how to use it.

    Raises:
        UsageError: The file exists or cannot be written.
    """
    text = (files("duemq.configuration") / SHIPPED).read_text("utf-8")
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        raise UsageError(f"{file} exists: name a new file, or remove it first") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    print(f"{file} is written; start the broker with: duemq broker -c {file}")
