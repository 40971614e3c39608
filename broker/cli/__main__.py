"""`python -m broker.cli` is `duemq`."""

from broker.cli import main

main()
