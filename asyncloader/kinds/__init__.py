"""What a loader does with its dataset: the kinds of dataset behind one protocol.

``kind.py`` says what a kind is, ``stream.py`` is that of recipes, ``torch.py`` that of the datasets which
torch's own loop reads. The loader checks nothing and decides nothing: it asks its kind.
"""
