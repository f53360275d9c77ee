"""Where a frame's records are if they did not come with it: in shared memory, or in the log.

May import `shared`. Nothing here checks records: the writer checks them as if they had come.
"""
