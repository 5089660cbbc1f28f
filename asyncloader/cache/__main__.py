"""``python -m asyncloader.cache DIR``: verify a disk cache."""

import sys

from .verifying import main

sys.exit(main(sys.argv[1:]))
