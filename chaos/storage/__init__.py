"""What disks do to a store: errors, no room, slowness, cuts, damage at rest, power failures."""
