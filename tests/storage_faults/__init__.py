"""Campaign of storage errors: every call that reaches a disk, with every error it can return.

call_sites   the calls in the product's source, and the place of a running call
injector     makes one call fail: once, or from then on
workload     a whole broker at work on a fake clock, and the checks of the next start
campaign     one run for each call and error, each in a process of its own
"""
