"""The release: its section of the changelog, and the archives that `make release` builds.

`tests/test_wheel.py` tests the metadata.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
import tomllib
import zipfile
from datetime import date
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.packages import TOP
from tests.test_import_arrows import ARROWS

PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
OF_SDIST = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "NOTICE", "PKG-INFO", "README.md"} | {
    "config",
    "constraints.txt",
    "deploy",
    "duemq.egg-info",
    "migration",
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
}


def test_the_changelog_has_a_dated_section_of_the_version() -> None:
    sections = re.findall(r"^## (\S+)(?: \((\S+)\))?$", (TOP / "CHANGELOG.md").read_text(), re.M)
    dates = dict(sections)
    assert date.fromisoformat(dates[PROJECT["version"]])


@pytest.mark.extended
def test_two_builds_are_equal_and_contain_nothing_else(tmp_path: Path) -> None:
    digests = []
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", TOP, clone], check=True)
    (clone / ".venv").symlink_to(TOP / ".venv")
    for _ in range(2):
        subprocess.run(
            [clone / ".ci" / "release"],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "RELEASE_BUILD_ONLY": "1"},
            check=True,
        )
        archives = sorted((clone / "build" / "release").iterdir())
        digests.append({path.name: sha256(path.read_bytes()).hexdigest() for path in archives})
    assert digests[0] == digests[1]
    wheel, sdist = archives
    with tarfile.open(sdist) as tar:
        names = {member.name.split("/")[1] for member in tar if "/" in member.name}
    assert names == OF_SDIST | {name for name in ARROWS if name != "duemq_migration"}
    with zipfile.ZipFile(wheel) as content:
        names = {name.split("/")[0] for name in content.namelist()}
        places = [name for name in content.namelist() if str(TOP).encode() in content.read(name)]
    assert names == ARROWS.keys() | {f"duemq-{PROJECT['version']}.dist-info"}
    assert not places
