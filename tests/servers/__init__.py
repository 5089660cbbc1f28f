"""The real servers that tests and benchmarks read from, each a context manager.

A server that is not installed skips the test; with ``ASYNCLOADER_REQUIRE_SERVERS=1``, as where changes
are checked, it fails it. What is started is ended by its process id, and leaves nothing.
"""

from .azurite import AzureServer, run_azurite
from .gcs import run_gcs
from .moto import run_moto
from .nginx import run_nginx
from .s3 import S3Server
from .swift import run_swift

__all__ = [
    "AzureServer",
    "S3Server",
    "run_azurite",
    "run_gcs",
    "run_moto",
    "run_nginx",
    "run_swift",
]
