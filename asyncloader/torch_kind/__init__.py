"""Datasets of the torch kind: map-style, iterable, and their asynchronous forms.

They keep torch's meaning by keeping torch's own loop: order, seeds, workers, errors and lengths are those
of ``torch.utils.data.DataLoader``, which runs here over datasets that are adapted to it. What is added is
what torch has no word for: coroutines, sharding, and errors that name the index.
"""
