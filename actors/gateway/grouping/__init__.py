"""Clients as members of groups and as producers, and what the gateway asks others for them.

May import `shared`, `remoting`, and of the gateway `connecting` and `asking`. Never `requests`,
which import it: who has which queue does not depend on how that was asked.
"""
