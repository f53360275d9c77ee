"""What a broker and its clients need from a machine: checks each need, and says what to do.

May import `shared`. It changes nothing, starts nothing, and must never know stores: `verify` checks
those.
"""
