"""One transformation of a stream a file: what a recipe is made of.

An operator is a frozen dataclass, so that a recipe pickles and compares. ``open`` runs it for one lane:
a plain generator over blocks that pulls from the operator before it. Positions nest in the same way:
an operator that has something to remember puts its entries around those of its upstream, under
``"from"``, and is opened again with them. To add an operator, write one file, and a method in
``dataset.py``.
"""
