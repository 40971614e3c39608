"""Builds of the client programs, cached by source text."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.interop.apache import OPEN_JDK, artifact_jars, cache_dir, classpath, jars
from tests.interop.class_archive import archive_options
from tests.support.requirements import need_commands

CLIENTS = Path(__file__).parent / "clients"
BUILD_S = 600
ROOT = Path(__file__).parents[2]
NEWER_ONLY = {"Timer.java", "ToolCalls.java"}  # require a client of version 5
SHARED = ("Args.java", "Events.java", "Session.java")  # of all Java programs with sessions
GO_SESSION = CLIENTS / "go" / "session.go"  # of all Go programs
GRPC_PYTHON = "rocketmq-python-client==5.1.2"
GRPC_NODE = "rocketmq-client-nodejs@1.0.8"
H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # Java options of programs of seconds
GRPC_JAVA = ("rocketmq-client-java", "5.2.0")


def java_command(version: str, home: Path) -> list[str]:
    """Return the command that runs the Java client program on that client version."""
    folder = java_classes(version)
    options = ["-Xmx256m", *QUICK, *archive_options("client", jars(version))]
    options += [f"-Duser.home={home}"]
    options += ["-Drocketmq.client.rebalance.waitInterval=500"]  # instead of 20 s
    options += ["-Drocketmq.client.rebalance.minInterval=100"]
    path = f"{classpath(version)}{os.pathsep}{folder}"
    return ["java", *OPEN_JDK, *options, "-cp", path, "Client", "session"]


def java_classes(version: str) -> Path:
    """Return the folder with the compiled Java client program for that client version."""
    return _compiled(f"java-{version}", version, _sources("java", version))


def python_command(program: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs a program in `clients/` as a session."""
    return ["env", f"PYTHONPATH={ROOT}", python, str(CLIENTS / program), "session"]


def grpc_python_command() -> list[str]:
    """Return the command that runs the gRPC client program for Python, in its own environment."""
    return python_command("grpc_client.py", str(_environment(GRPC_PYTHON) / "bin" / "python"))


def grpc_java_command(home: Path, *, tls: bool = False) -> list[str]:
    """Return the command that runs the gRPC client program for Java."""
    need_commands("java", "javac")
    path = f"{artifact_jars(*GRPC_JAVA)}/*"
    sources = sorted((CLIENTS / "grpc").glob("*.java"))
    sources += [CLIENTS / "java" / name for name in SHARED]
    folder = _javac(f"java-grpc-{GRPC_JAVA[1]}", path, sources)
    options = ["-Xmx256m", *QUICK, *archive_options("client", artifact_jars(*GRPC_JAVA))]
    options += [f"-Duser.home={home}", f"-Dgrpc.tls={str(tls).lower()}"]
    return ["java", *options, "-cp", f"{path}{os.pathsep}{folder}", "GrpcClient", "session"]


def v5_load_command(source: Path) -> list[str]:
    """Return the command of the load generator in `source` that uses the gRPC client for Java."""
    need_commands("java", "javac")
    path = f"{artifact_jars(*GRPC_JAVA)}/*"
    folder = _javac(f"java-v5load-{GRPC_JAVA[1]}", path, sorted(source.glob("*.java")))
    return ["java", "-Xmx512m", "-cp", f"{folder}{os.pathsep}{path}", "V5Load"]


def grpc_node_command() -> list[str]:
    """Return the command that runs the gRPC client program for Node.js."""
    need_commands("node")
    folder = installed_npm_package(GRPC_NODE, cache_dir() / f"node-{GRPC_NODE.replace('@', '-')}")
    program = str(CLIENTS / "node" / "client.js")
    return ["env", f"NODE_PATH={folder / 'node_modules'}", "node", program]


def installed_npm_package(package: str, folder: Path) -> Path:
    """Return a folder with `node_modules` of one package."""
    need_commands("npm")
    if not folder.is_dir():
        part = _part(folder)
        part.mkdir(parents=True)
        options = ["--prefix", str(part), "--ignore-scripts", "--no-audit", "--no-fund"]
        _build(["npm", "install", *options, package])
        _publish(part, folder)
    return folder


def _environment(package: str) -> Path:
    """Return a Python environment that has one package."""
    folder = cache_dir() / f"python-{package.replace('==', '-')}"
    if not folder.is_dir():
        part = _part(folder)
        _build([sys.executable, "-m", "venv", str(part)])
        _build([str(part / "bin" / "python"), "-m", "pip", "install", "-q", package])
        _publish(part, folder)
    return folder


def java_program(name: str, version: str) -> Path:
    """Return the folder with the compiled Java program in `clients/NAME`."""
    return _compiled(f"java-{name}-{version}", version, _sources(name, version))


def _sources(name: str, version: str) -> list[Path]:
    """Return the sources in `clients/NAME` for that client version."""
    found = sorted((CLIENTS / name).glob("*.java"))
    return [path for path in found if not (version[0] == "4" and path.name in NEWER_ONLY)]


def _compiled(name: str, version: str, sources: list[Path]) -> Path:
    need_commands("java", "javac")
    jars(version)
    return _javac(name, classpath(version), sources)


def _javac(name: str, path: str, sources: list[Path]) -> Path:
    """Return the folder with the classes of these sources, compiled with that class path."""
    folder = cache_dir() / f"{name}-{_digest(sources)}"
    if not folder.is_dir():
        part = _part(folder)
        _build(["javac", "-nowarn", "-d", str(part), "-cp", path, *map(str, sources)])
        _publish(part, folder)
    return folder


def grpc_go_command(home: Path) -> list[str]:
    """Return the command that runs the gRPC client program for Go, which connects by TLS."""
    program = str(go_program(CLIENTS / "go_v5", shared=[GO_SESSION]))
    return ["env", f"rocketmq.client.logRoot={home}", program, "session"]


def h2spec() -> Path:
    """Return the path of h2spec, the conformance test of HTTP/2 servers."""
    need_commands("go")
    folder = cache_dir() / H2SPEC.rpartition("@")[2]
    program = folder / "h2spec"
    if not program.exists():
        _build(["env", f"GOBIN={folder}", "go", "install", H2SPEC])
    return program


def go_program(source: Path, *, tls: bool = False, shared: Sequence[Path] = ()) -> Path:
    """Return the binary of the Go module in folder `source`.

    Args:
        tls: Whether it is built by its `go_tls.mod`.
        shared: Sources of other folders that are part of it.
    """
    need_commands("go")
    sources = sorted(p for p in source.iterdir() if p.suffix in {".go", ".mod", ".sum"})
    sources += shared
    options = ["-tags", "tls", "-modfile", "go_tls.mod"] if tls else []
    folder = cache_dir() / f"go-{source.name}{'-tls' if tls else ''}-{_digest(sources)}"
    binary = folder / source.name
    if not folder.is_dir():
        part = _part(folder)
        module = part / "module"
        module.mkdir(parents=True)
        for path in sources:
            shutil.copy(path, module)
        output = ["-o", str(part / source.name), "."]
        _build(["go", "build", "-C", str(module), *options, *output])
        _publish(part, folder)
    return binary


def grpc_rust_command() -> list[str]:
    """Return the command that runs the gRPC client program for Rust.

    Its 250 crates are compiled once, in three minutes of processor time.
    """
    need_commands("cargo")
    source, target = CLIENTS / "rust", cache_dir() / "rust-target"
    sources = sorted([source / "Cargo.toml", *source.glob("src/*.rs")])
    folder = cache_dir() / f"rust-{_digest(sources)}"
    if not folder.is_dir():
        part = _part(folder)
        part.mkdir(parents=True)
        package = part / "package"  # a copy: Cargo writes its lock file next to the manifest
        shutil.copytree(source, package)
        manifest = str(package / "Cargo.toml")
        _build(["cargo", "build", "--manifest-path", manifest, "--target-dir", str(target)])
        shutil.copy(target / "debug" / "rust_v5", part)
        _publish(part, folder)
    return [str(folder / "rust_v5"), "session"]


def _build(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")


def _publish(part: Path, folder: Path) -> None:
    """Move a finished build into the cache, unless another process has done so."""
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
