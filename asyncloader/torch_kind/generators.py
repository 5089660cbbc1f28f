"""The generators that a loader of the torch kind draws from: which they are, and their states as text.

torch's default generator belongs to the whole program, which draws from it between batches; one that was
given to the loader or its sampler is the loader's alone. So of the default one two states count, that from
which a pass drew its order and the present one; of the others the first, from which all the rest follows.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from .adapt import is_iterable

__all__ = [
    "DEFAULT",
    "States",
    "decode_states",
    "encode_states",
    "generators_of",
    "innermost_sampler",
    "leaves_default_alone",
    "read_states",
    "set_states",
]

#: The state of each generator, by what it is to the loader.
States: TypeAlias = dict[str, torch.Tensor]

#: torch's default generator, of the CPU.
DEFAULT = "default"


def generators_of(loader: Any) -> dict[str, torch.Generator]:
    """What ``loader`` draws its order and its workers' seeds from, each generator once."""
    found: dict[str, torch.Generator] = {}
    if loader.generator is None or not leaves_default_alone(loader):
        found[DEFAULT] = torch.default_generator
    for name, generator in (("loader", loader.generator), ("sampler", _sampler_generator(loader))):
        known = any(generator is other for other in found.values())
        if isinstance(generator, torch.Generator) and not known:
            found[name] = generator
    return found


def innermost_sampler(loader: Any) -> Any:
    """What gives single indices, as far as torch's own classes tell; else what gives lists of them."""
    batch_sampler = loader.batch_sampler
    if type(batch_sampler) is BatchSampler:
        return batch_sampler.sampler
    return loader.sampler if batch_sampler is None else batch_sampler


def leaves_default_alone(loader: Any) -> bool:
    """Whether the order of a loader's indices surely does not hang on torch's default generator."""
    if is_iterable(loader.dataset):
        return True
    known = type(innermost_sampler(loader)) in (SequentialSampler, DistributedSampler)
    return known or _sampler_generator(loader) is not None


def _sampler_generator(loader: Any) -> torch.Generator | None:
    sampler = innermost_sampler(loader)
    for part in (sampler, getattr(sampler, "sampler", None)):
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator):
            return generator
    return None


def read_states(generators: Mapping[str, torch.Generator]) -> States:
    """A copy of the present state of each."""
    return {name: generator.get_state() for name, generator in generators.items()}


def set_states(generators: Mapping[str, torch.Generator], states: Mapping[str, torch.Tensor]) -> None:
    """Set those of the generators of which there is a state."""
    for name, generator in generators.items():
        if name in states:
            generator.set_state(states[name])


def encode_states(states: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Each state as base64."""
    return {name: base64.b64encode(_pack(state)).decode() for name, state in states.items()}


def decode_states(encoded: Mapping[str, str]) -> States:
    """What ``encode_states`` was given.

    Raises:
        ValueError: It is something else.
    """
    try:
        return {name: _unpack(base64.b64decode(text)) for name, text in encoded.items()}
    except (AttributeError, TypeError, ValueError, zlib.error) as error:
        raise ValueError("a generator's state in it cannot be read; was it cut or edited?") from error


# The CPU's generator keeps its 624 words of 32 bits in 64 each: with first bytes first, then second ones and
# so on, half of it is zeros in one run, and 5,056 bytes become 2,600.
_WORD_BYTES = 8


def _pack(state: torch.Tensor) -> bytes:
    if state.numel() % _WORD_BYTES == 0:
        state = state.view(-1, _WORD_BYTES).t().contiguous()
    return zlib.compress(state.numpy().tobytes(), 1)


def _unpack(packed: bytes) -> torch.Tensor:
    state = torch.frombuffer(bytearray(zlib.decompress(packed)), dtype=torch.uint8)
    if state.numel() % _WORD_BYTES == 0:
        state = state.view(_WORD_BYTES, -1).t().contiguous().view(-1)
    return state
