"""Web servers, through aiohttp: ``client`` asks, ``answers`` holds what comes against what was asked."""
