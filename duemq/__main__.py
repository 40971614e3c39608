"""`python -m duemq` is the command `duemq`."""

from duemq.cli import main

main()
