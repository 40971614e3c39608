"""Files on a disk."""

from tests.support.memory_files import tmp_path_factory

__all__ = ["tmp_path_factory"]
