"""Makes a batch out of samples: stacked as torch does it, or padded. Pure.

``default`` has the rules by which values are stacked, ``pad`` and ``ragged`` lay sequences of unequal length
side by side, ``fault`` says what does not fit together, ``empty`` makes batches of no samples.
"""
