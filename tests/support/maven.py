"""Jars of Maven Central, kept in the user's cache."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from duemq.cli.cache_home import user_cache
from tests.support.requirements import Missing, need_commands

FETCH_S_MAX = 600


def jar_folder() -> Path:
    """Return the directory of the jars."""
    return (user_cache() or Path(tempfile.gettempdir())) / "jars"


def fetch_jar(artifact: str) -> Path:
    """Return a jar, fetched by Maven if it is missing.

    Args:
        artifact: Group, name and version, separated by colons.
    Raises:
        Missing: Maven is not installed, or cannot fetch it.
    """
    _, name, version = artifact.split(":")
    jar = jar_folder() / f"{name}-{version}.jar"
    if not jar.is_file():
        need_commands("mvn")
        words = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
        done = subprocess.run(
            [*words, f"-DoutputDirectory={jar_folder()}"],
            capture_output=True,
            text=True,
            timeout=FETCH_S_MAX,
            check=False,
        )
        if done.returncode:
            raise Missing(f"Maven cannot fetch {artifact}: {done.stdout}{done.stderr}")
    return jar
