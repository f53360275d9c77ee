"""Where the records of a frame are that did not come with it: in shared memory, or in the log.

May import `shared`. Nothing here checks records: the writer checks them as if they had come.
"""
