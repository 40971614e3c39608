"""Campaign of clock steps: hours and years in both directions, and strobing.

rig        complete broker on a fake clock, with clients that have pending messages, locks and pulls
campaign   runs for each combination of a pattern of steps and a time, and the page about them
"""
