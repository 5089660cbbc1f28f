"""Structured concurrency: the one place where tasks are born, and the channels between threads."""
