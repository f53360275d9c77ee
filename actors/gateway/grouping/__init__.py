"""Clients as members of groups and as producers, and what the gateway asks others for them.

May import `shared`, `remoting`, and of the gateway `connecting` and `asking`. Never `requests`,
which know it: whose queues are whose does not depend on how it was asked.
"""
