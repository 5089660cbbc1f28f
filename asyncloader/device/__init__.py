"""The last stage before the consumer: batches in pinned memory, or already on the device."""
