"""Tests of the benchmarks, at small sizes."""
