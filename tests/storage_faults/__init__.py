"""Campaign of storage errors: every call that reaches a disk, with every error it can return.

call_sites   finds the calls in the product's source, and the site of a running call
injector     makes one call site fail, once or permanently
workload     runs a complete broker on a fake clock, and checks it after the next start
campaign     runs the workload for each call site and error, in separate processes
"""
