"""What the batch source and the stream have in common: options, offsets, filters, rows."""
