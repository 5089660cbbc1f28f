"""The facade: ``DataLoader``, its options, one pass, ranks in step, and state."""
