"""How long work on stores of some size takes: an export, a rebuild, a start after a kill.

May import `bench/loads` and what that may. No clients' load runs meanwhile.
"""
