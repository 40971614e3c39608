"""Campaign of clock steps: hours and years in both directions, and strobing.

world      a whole broker on a fake clock, with clients whose messages, locks and pulls are pending
campaign   one run for each pattern of steps and moment, and the page about them
"""
