"""Data sets as others keep them: MDS, LitData's chunks, and those of the Hugging Face hub.

``folder`` reads an index that lies beside shards and names them, the others make recipes of what they find.
"""
