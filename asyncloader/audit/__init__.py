"""The audit: what each rank has delivered, on disk, and the proof that it was everything, once.

``rows`` is what a file holds, ``recording`` writes it, ``reading`` puts the files of all ranks and restarts
together, and ``verdict`` says of an epoch what is wrong with it.
"""
