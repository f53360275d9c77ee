"""What stores of some size take: an export, a rebuild, a start after a kill.

May import `bench/loads` and what that may. No clients' load runs meanwhile.
"""
