"""Builds the client programs once per source text, into the cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.interop.apache import OPEN_JDK, cache_dir, classpath, jars
from tests.support.requirements import need_commands

CLIENTS = Path(__file__).parent / "clients"
BUILD_S = 600
NEWER_ONLY = {"Timer.java"}  # needs a client of version 5


def java_command(version: str, home: Path) -> list[str]:
    """Return the command that runs the Java client program on that client version."""
    folder = java_classes(version)
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}"]
    options += ["-Drocketmq.client.rebalance.waitInterval=500"]  # instead of 20 s
    options += ["-Drocketmq.client.rebalance.minInterval=100"]
    path = f"{folder}{os.pathsep}{classpath(version)}"
    return ["java", *OPEN_JDK, *options, "-cp", path, "Client", "session"]


def java_classes(version: str) -> Path:
    """Return the folder with the compiled Java client program for that client version."""
    sources = sorted((CLIENTS / "java").glob("*.java"))
    if version.startswith("4."):
        sources = [path for path in sources if path.name not in NEWER_ONLY]
    return _compiled(f"java-{version}", version, sources)


def java_program(name: str, version: str) -> Path:
    """Return the folder with the compiled Java program in `clients/NAME`."""
    sources = sorted((CLIENTS / name).glob("*.java"))
    return _compiled(f"java-{name}-{version}", version, sources)


def _compiled(name: str, version: str, sources: list[Path]) -> Path:
    need_commands("java", "javac")
    folder = cache_dir() / f"{name}-{_digest(sources)}"
    if not folder.is_dir():
        jars(version)
        part = _part(folder)
        _build(["javac", "-nowarn", "-d", str(part), "-cp", classpath(version), *map(str, sources)])
        _publish(part, folder)
    return folder


def go_program(source: Path, *, tls: bool = False) -> Path:
    """Return the binary of the Go module in folder `source`; with `tls` by its `go_tls.mod`."""
    need_commands("go")
    sources = sorted(p for p in source.iterdir() if p.suffix in {".go", ".mod", ".sum"})
    options = ["-tags", "tls", "-modfile", "go_tls.mod"] if tls else []
    folder = cache_dir() / f"go-{source.name}{'-tls' if tls else ''}-{_digest(sources)}"
    binary = folder / source.name
    if not folder.is_dir():
        part = _part(folder)
        part.mkdir(parents=True)
        output = ["-o", str(part / source.name), "."]
        _build(["go", "build", "-C", str(source), *options, *output])
        _publish(part, folder)
    return binary


def _build(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")


def _publish(part: Path, folder: Path) -> None:
    """Give a finished build its name; another process may have been faster."""
    if not folder.is_dir():
        part.rename(folder)
    shutil.rmtree(part, ignore_errors=True)


def _part(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.part{os.getpid()}")


def _digest(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
