"""What stands between a client and whoever reads, so that a network may fail: each a store around a store.

From the client outwards: ``renewing`` (signatures that expire), ``timed`` (no progress), ``pacing`` (no more
than a server takes), ``resuming`` (asking again). The rules alone are pure, in ``retries`` and ``hedging``.
"""
