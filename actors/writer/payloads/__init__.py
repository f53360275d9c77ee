"""Where the records of a frame are that did not come with it: in shared memory, or in the log.

May import `shared`. Nothing here looks at records: what these give is checked as if it had come.
"""
