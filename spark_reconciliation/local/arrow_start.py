"""Start of pyarrow without pandas.

At the first array that is made, pyarrow imports pandas if it is installed: 0.56 s of the processor
in each audit.
"""

from __future__ import annotations

import sys
from typing import Final

import pyarrow as pa

PANDAS: Final = "pandas"


class _NoPandas:
    """Finder of modules that refuses the import of pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == PANDAS:
            raise ImportError(name)


def start_without_pandas() -> None:
    """Let pyarrow not use pandas in this process, unless one of both is in use already.

    Other code of the process can import pandas; pyarrow refuses its objects.
    """
    if PANDAS in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array(())
    finally:
        sys.meta_path.remove(finder)
