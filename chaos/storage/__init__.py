"""What disks do to a store: errors, no room, slowness, cuts, damage at rest, power failures.

May import `client`, `maintenance`, `shared`, and the other rooms and tools of `chaos`. Never an
actor: a disk cannot tell who writes to it.
"""
