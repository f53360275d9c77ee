"""What each request does: a function for each, which `processors` has in its table."""
