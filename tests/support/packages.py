"""Packages of the product: their folders and modules."""

from __future__ import annotations

from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
IN_A_FOLDER = {"duemq_migration": "migration"}
"""Packages that are not in the top directory, with the folder that contains them."""


def folder_of(package: str) -> Path:
    """Return the folder of a package."""
    return TOP / IN_A_FOLDER.get(package, "") / package


def module_of(file: str) -> str:
    """Return the module in a file of the product, a path relative to the top directory."""
    names = file.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(names[1:] if names[0] in IN_A_FOLDER.values() else names)


def unit_tests_of(package: str) -> Path:
    """Return the folder with the tests of a package."""
    return TOP / "tests" / IN_A_FOLDER.get(package, package)
