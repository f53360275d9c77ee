"""Other brokers under the same load as Penstock: a file each, and `compare` that runs them all."""
