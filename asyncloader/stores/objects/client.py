"""obstore's clients: made in the process that uses them, never across a fork."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import obstore.store
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from .clouds import CLOUDS
from .options import client_arguments, plain_options
from .profiles import Chosen, Provider, choose, read_shared_files

__all__ = ["Client", "make_client", "refuse_after_fork"]

Client: TypeAlias = S3Store | GCSStore | AzureStore

# The process whose obstore runtime this is: the one global of the library. The runtime is itself a global
# of the process, made by the first request and lost in a fork, whose child would wait for its threads for
# ever; who used it first cannot be known from any object of ours.
_first_used_in: int | None = None


def refuse_after_fork() -> None:
    """Note that this process uses obstore.

    Raises:
        RuntimeError: The process it was forked from did.
    """
    global _first_used_in
    pid = os.getpid()
    if _first_used_in is None:
        _first_used_in = pid
    elif _first_used_in != pid:
        raise RuntimeError(
            f"object stores were used in process {_first_used_in} before it was forked into this one, "
            f"{pid}, where they would hang; start workers with 'forkserver' or 'spawn', or fork earlier"
        )


def make_client(
    scheme: str,
    bucket: str,
    options: Mapping[str, Any],
    provider: Provider | None = None,
    *,
    retries: int = 0,
) -> Client:
    """A client of one bucket.

    Args:
        scheme: ``s3``, ``gs`` or ``az``.
        bucket: Its name.
        options: Checked ones.
        provider: In place of the ``credential_provider`` among them.
        retries: How often obstore itself asks again; 0 where a wrapper does.

    Raises:
        ValueError: obstore takes no such values, or there is no such profile.
    """
    plain = plain_options(scheme, options)
    if provider is not None:
        plain["credential_provider"] = provider
    chosen = Chosen(provider=provider)
    cloud = CLOUDS[scheme]
    if cloud.has_profiles:
        chosen = choose(plain, os.environ, read_shared_files(os.environ))
    config, client_options = client_arguments(scheme, options, os.environ, chosen, bucket)
    make: Any = getattr(obstore.store, cloud.client)
    try:
        client: Client = make(
            bucket,
            config=config,
            client_options=client_options,
            retry_config={"max_retries": retries},
            credential_provider=chosen.provider,
        )
    except (BaseError, OSError, TypeError, ValueError) as error:
        reason = _without(str(error).partition("\n")[0], [*options.values(), *config.values()])
    else:
        return client
    given = ", ".join(sorted(options)) or "none"
    raise ValueError(f"no client for {scheme}://{bucket} with the options given ({given}): {reason}")


def _without(text: str, secrets: Iterable[object]) -> str:
    for secret in secrets:
        if isinstance(secret, str) and secret:
            text = text.replace(secret, "***")
    return text
