"""What a value is, told in a line: kind, dtype, shape, size, beginning. Pure, and decodes nothing."""

from .fields import Preview, preview_field, preview_sample
from .images import image_of

__all__ = ["Preview", "image_of", "preview_field", "preview_sample"]
