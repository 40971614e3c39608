"""The wheel: its metadata, and an application with packages of common names that installs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import PackageMetadata, PathDistribution
from pathlib import Path

import pytest

from tests.support import embedding_application
from tests.support.packages import TOP, folder_of
from tests.test_import_arrows import ARROWS

FILES = "pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"
TIMEOUT_S = 300
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
LINK = re.compile(r"\]\(([^)]+)\)")


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command and return its output."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def built_wheel(directory: Path) -> Path:
    """Build the wheel from a copy of the sources, without network."""
    source = directory / "source"
    source.mkdir()
    for name in FILES:
        shutil.copy(TOP / name, source)
    for package in ARROWS:
        shutil.copytree(
            folder_of(package),
            source / folder_of(package).relative_to(TOP),
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    pip = sys.executable, "-m", "pip", "--disable-pip-version-check"
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", directory, source)
    [wheel] = directory.glob("duemq-*.whl")
    return wheel


def environment_with(wheel: Path, directory: Path) -> Path:
    """Return the Python of a new environment with a wheel; dependencies are this environment's.

    A path in a .pth file adds their modules, but not the editable installation of this checkout.
    """
    run(sys.executable, "-m", "venv", "--without-pip", directory)
    python = directory / "bin" / "python"
    pip = sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python
    run(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(packages) / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> PackageMetadata:
    directory = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as content:
        content.extractall(directory)
    [info] = directory.glob("*.dist-info")
    return PathDistribution(info).metadata


def test_links_of_the_readme_on_an_index_are_absolute(metadata: PackageMetadata) -> None:
    links = LINK.findall(metadata.get_payload())  # type: ignore[attr-defined]
    assert len(links) > 40
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    documentation = PROJECT["urls"]["Documentation"]
    assert f"{documentation}/how-to/deploy/" in links
    assert f"{documentation}/figures/timer-lateness.svg" in links


def test_the_metadata_is_complete(metadata: PackageMetadata) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"]
    assert metadata["Summary"]
    assert metadata["Keywords"]
    assert {text.partition(",")[0] for text in metadata.get_all("Project-URL")} == PROJECT[
        "urls"
    ].keys()
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]


@pytest.mark.finding("3U1")
def test_an_application_with_packages_of_common_names_embeds_a_broker(
    wheel: Path, tmp_path: Path
) -> None:
    python = environment_with(wheel, tmp_path / "env")
    application = tmp_path / "application"
    for name in embedding_application.OWN_PACKAGES:
        (application / name).mkdir(parents=True)
        (application / name / "__init__.py").write_text('"""Package of the application."""\n')
    shutil.copy(embedding_application.__file__, application / "main.py")
    output = run(python, "main.py", tmp_path / "store", cwd=application)
    delivered, *files = output.splitlines()
    assert (
        delivered
        == "delayed migration reconciliation recurring_schedules schedule_service timer_store"
    )
    assert all(Path(file).is_relative_to(tmp_path / "env") for file in files), files
