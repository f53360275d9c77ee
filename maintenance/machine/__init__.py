"""What a broker and its clients need of a machine: each need looked at, with what to do.

May import `shared`. Nothing is changed here, and nothing is started; no store is known either: that
is the work of `verify`.
"""
