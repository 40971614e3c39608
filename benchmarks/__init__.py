"""Our broker and Apache's under the same loads in one run: `python -m benchmarks.run --help`."""
