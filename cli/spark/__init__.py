"""The commands of `penstock spark`: a job each, over a whole store.

May import `printing`, `store`, the ground of the commands, `spark`, and `shared`. No job is written
here, and no session is started before a command needs one.
"""
