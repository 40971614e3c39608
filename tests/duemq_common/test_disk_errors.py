"""Remedies for errors of files and directories."""

from __future__ import annotations

import errno

import pytest

from duemq_common.disk_errors import remedy_of


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free disk space"),
        (errno.EDQUOT, "Free disk space"),
        (errno.EROFS, "Let the broker's user write"),
        (errno.EACCES, "Let the broker's user write"),
        (errno.EMFILE, "Raise the limit of open files"),
        (errno.ENOENT, "Restore its directory"),
        (errno.EIO, "Check the disk"),
    ],
)
def test_the_remedy_fits_the_error(number: int, remedy: str) -> None:
    assert remedy_of(OSError(number, "why")).startswith(remedy)


def test_an_error_without_a_number_has_a_remedy() -> None:
    assert remedy_of(OSError("why")) == "Check the disk"
