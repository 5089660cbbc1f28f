"""What is on disk: names, headers, checksums, locks and eviction; blocking, to be called in threads.

``layout`` says which files there are and what holds of them.
"""
