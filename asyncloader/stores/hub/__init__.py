"""Data sets of the Hugging Face hub, by ``hf://`` URLs: read and listed over HTTP."""
