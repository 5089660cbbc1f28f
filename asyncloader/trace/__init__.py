"""What a pass was at, moment by moment: recorded where it happens, told with the notes, written as one file.

``events`` are what is recorded. Where it happens, ``stopwatch`` and ``traffic`` record them, and ``recorder``
keeps those of a process until they are told. ``counters`` take in what all processes of a pass tell;
``series`` and ``latency`` are what comes of it over time, ``timeline`` makes it the Trace Event Format, and
``files`` names and writes the file.
"""
