"""Works on a store without a broker: verify, repair, rebuild, offline query.

May import `shared`. No actor imports it: what a broker needs while it runs must not depend on what
mends a store afterwards.
"""
