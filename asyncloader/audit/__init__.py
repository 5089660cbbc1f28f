"""The audit: what each rank has delivered, on disk, and the proof that it was everything, once."""
