"""What a message costs on its way into the log and out of it: rates, delays, processors, bytes.

May import `bench/loads`, `bench/reports` and what these may. Nothing of groups, delays or stores.
"""
