"""Works on a store without a broker: verify, repair, rebuild, offline query.

May import `shared`. No actor imports it: what a running broker needs must not depend on what
repairs a store afterwards.
"""
