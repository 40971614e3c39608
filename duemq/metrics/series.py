"""Families with a series for each topic, queue or group, and the text of all families.

prometheus-client makes an object and a dictionary for each sample, and sorts and escapes its
labels: 20 us for each of 200,000 series, during which the event loop waits for the interpreter and
for collections of garbage. A `SeriesTable` has labels and values as columns; its text is joined
from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

GAUGE: Final = "gauge"
COUNTER: Final = "counter"
HISTOGRAM: Final = "histogram"
INFINITY: Final = "+Inf"
END: Final = b"# EOF\n"  # of OpenMetrics
PIECE_SERIES: Final = 256  # of a piece of text; a series has up to 2 KB


class SeriesLabels:
    """Label values of the series of one or more families.

    Args:
        names: Label names.
        rows: Values of each series.
    """

    def __init__(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.names, self.rows = tuple(names), rows
        self._texts: dict[str, list[str]] = {}  # by the text of common labels

    def texts(self, common: Mapping[str, str]) -> list[str]:
        """Return the labels of each series as text, without the closing brace.

        Args:
            common: Labels of all series, in front of the others.
        """
        head = ",".join(f'{name}="{escaped(value)}"' for name, value in common.items())
        texts = self._texts.get(head)
        if texts is None:
            names = [f'{name}="%s"' for name in self.names]
            form = "{" + ",".join([*([head.replace("%", "%%")] if head else []), *names])
            texts = self._texts[head] = [form % tuple(map(escaped, row)) for row in self.rows]
        return texts


class SeriesTable(Metric):
    """Family of many series.

    Args:
        kind: GAUGE, COUNTER or HISTOGRAM.
        values: A number for each series; for a histogram, its sum.
        bounds: Upper bounds of the buckets of a histogram, without infinity.
        counts: Counts of the buckets of each series, not cumulated, the last one above all bounds.
    """

    def __init__(
        self,
        name: str,
        text: str,
        kind: str,
        labels: SeriesLabels,
        values: Sequence[float],
        *,
        bounds: Sequence[float] = (),
        counts: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__(name, text, kind)
        self._labelnames = labels.names
        self._labels, self._values = labels, values
        self._bounds = [*map(str, map(float, bounds)), INFINITY]
        self._counts = counts
        self._common: dict[str, str] = {}

    def add_labels(self, labels: Mapping[str, str]) -> None:
        """Add labels with the same value to all series."""
        self._common |= labels

    @property
    def series_names(self) -> frozenset[str]:
        """Names of the series."""
        if self.type == HISTOGRAM:
            return frozenset(self.name + suffix for suffix in ("_bucket", "_count", "_sum"))
        return frozenset({self.name + ("_total" if self.type == COUNTER else "")})

    def as_samples(self) -> Metric:
        """Return the family with an object for each sample, which can be removed."""
        family = Metric(self.name, self.documentation, self.type)
        family.samples = self.samples
        return family

    @property
    def samples(self) -> list[Sample]:
        """The samples as prometheus-client has them, for readers that need objects."""
        return list(self._made_samples())

    @samples.setter
    def samples(self, samples: list[Sample]) -> None:
        assert not samples, "`Metric` assigns an empty list; the columns have the values"

    def _made_samples(self) -> Iterator[Sample]:
        """Yield the samples as prometheus-client has them."""
        for number, (row, value) in enumerate(zip(self._labels.rows, self._values, strict=True)):
            labels = self._common | dict(zip(self._labels.names, row, strict=True))
            if self.type != HISTOGRAM:
                [name] = self.series_names
                yield Sample(name, labels, value)
                continue
            total = 0
            for bound, count in zip(self._bounds, self._counts[number], strict=True):
                total += count
                yield Sample(self.name + "_bucket", labels | {"le": bound}, total)
            yield Sample(self.name + "_count", labels, total)
            yield Sample(self.name + "_sum", labels, value)

    def lines(self, *, is_openmetrics: bool) -> list[str]:
        """Return the text of the family."""
        title = self.name
        if self.type == COUNTER and not is_openmetrics:
            title += "_total"
        head = f"# HELP {title} {self.documentation}\n# TYPE {title} {self.type}\n"
        texts = self._labels.texts(self._common)
        if self.type == HISTOGRAM:
            return [head, *self._histogram_lines(texts)]
        [name] = self.series_names
        return [
            head,
            *[f"{name}{text}}} {value}\n" for text, value in zip(texts, self._values, strict=True)],
        ]

    def _histogram_lines(self, texts: Sequence[str]) -> list[str]:
        """Return the lines of all buckets, counts and sums; those of one series by one format."""
        bucket, count, total = (f"{self.name}{end}" for end in ("_bucket", "_count", "_sum"))
        form = "".join(f'{bucket}%(l)s,le="{bound}"}} %({bound})s\n' for bound in self._bounds)
        form += f"{count}%(l)s}} %({INFINITY})s\n{total}%(l)s}} %(sum)s\n"
        lines = []
        for text, value, counts in zip(texts, self._values, self._counts, strict=True):
            facts = dict[str, object](zip(self._bounds, accumulate(counts), strict=True))
            facts["l"], facts["sum"] = text, value
            lines.append(form % facts)
        return lines


def escaped(value: str) -> str:
    """Return a label value as text between quotation marks."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


class Families(Collector):
    """Families in the form of a registry.

    Args:
        families: What `collect` returns.
    """

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        """Return the families."""
        return self._families


def encode(families: Iterable[Metric], encoder: Callable[[Collector], bytes]) -> Iterator[bytes]:
    """Yield the text of all families in pieces.

    A piece of a `SeriesTable` is joined and encoded without another thread in between, so it has a
    limited number of series.

    Args:
        encoder: Encoder of prometheus-client, of the text format or of OpenMetrics; it encodes the
            families that are no `SeriesTable`.
    """
    is_openmetrics = encoder(Families(())).endswith(END)
    others: list[Metric] = []

    def others_text() -> bytes:
        text = encoder(Families(tuple(others))).removesuffix(END)
        others.clear()
        return text

    for family in families:
        if isinstance(family, SeriesTable):
            yield others_text()
            lines = family.lines(is_openmetrics=is_openmetrics)
            for first in range(0, len(lines), PIECE_SERIES):
                yield "".join(lines[first : first + PIECE_SERIES]).encode()
        else:
            others.append(family)
    yield others_text() + (END if is_openmetrics else b"")
