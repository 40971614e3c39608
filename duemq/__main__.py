"""Entry point of `python -m duemq`, the command `duemq`."""

from duemq.cli import main

main()
