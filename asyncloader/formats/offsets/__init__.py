"""Shards that begin with a table of where their samples are, whatever the bytes of these mean.

``u32 count, u32 offsets[count + 1], header, samples``, in little-endian order: MDS and LitData's chunks.
``table`` reads and checks the beginning, ``decoder`` walks over the samples, ``plan`` brings just those that
are wanted, ``fields`` finds the fields of many samples at once, ``values`` takes them out, and ``packed``
guards what is decompressed.
"""
