"""The dataset as users write it: sources, operators, mixtures and batching; and the run of one lane."""
