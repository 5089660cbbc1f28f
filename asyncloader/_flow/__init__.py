"""Structured concurrency: where tasks are born, the channels between threads, and clean processes."""
