"""What the gateway asks of others, actors and clients, until it is answered."""
