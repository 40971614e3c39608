"""Meters: what they count, and that label values of clients do not make them grow."""

from duemq.net.meters import KEYS_MAX, Counts, Observations


def test_counts() -> None:
    counts = Counts()
    counts.add("T")
    counts.add("T", count=2)
    counts.add("U")
    assert dict(counts) == {("T",): 3, ("U",): 1}


def test_observations_are_cumulative() -> None:
    observed = Observations((1, 10))
    for value in (0, 1, 2, 10, 11):
        observed.add(value, "a")
    observed.add(5, "a", count=3)
    [(labels, buckets, total)] = observed
    assert labels == ("a",)
    assert buckets == [("1.0", 2), ("10.0", 7), ("+Inf", 8)]
    assert total == 39


def test_the_number_of_keys_is_bounded() -> None:
    counts, observed = Counts(), Observations((1,))
    for n in range(KEYS_MAX + 5):
        counts.add(str(n), "x")
        observed.add(1, str(n), "x")
    assert dict(counts)["", ""] == 5
    assert len(list(counts)) == len(list(observed)) == KEYS_MAX + 1
