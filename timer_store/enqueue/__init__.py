"""From a send, or from the timer queue, into timer log and wheel."""
