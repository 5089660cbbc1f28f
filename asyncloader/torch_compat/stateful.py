"""The user's own parts that have a state, by ``state_dict`` and ``load_state_dict``.

The state of both a part and its iterator is saved, since either may hold the position. An iterator that is
the part itself is saved once, and restored after ``iter()``, which may begin it anew. So does torchdata's
loader.
"""

from __future__ import annotations

import base64
import pickle
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from typing import Any, TypeAlias

import torch
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler
from torch.utils.data import get_worker_info as torch_worker_info

from ..errors import add_note
from ..workers.raised import Dumped, dump_error
from .adapt import is_iterable


def is_stateful(part: Any) -> bool:
    """Whether ``part`` has both methods."""
    return callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None))


#: What a part returned, pickled; or what it raised, for when the loader's state is requested. That is in the
#: form that workers send, also within a process: the frames of an error would keep an iterator.
Said: TypeAlias = bytes | Dumped


def where(owner: Any, iterator: Any) -> Said | None:
    """The states of ``owner`` and its iterator; None if neither has one.

    Pickled at once: what a ``state_dict`` returns may be a dict that the part changes later. Iterating does
    not need it, so that a ``state_dict`` which takes arguments, fails or does not pickle raises no error
    here.
    """
    told: dict[str, Any] = {}
    try:
        for name, part in (("owner", owner), ("iterator", iterator)):
            note = (
                f"raised by state_dict() of {type(part).__name__}, which the loader calls without arguments "
                "for its own state_dict(). Iterating does not need it"
            )
            if is_stateful(part) and not (name == "owner" and iterator is owner):
                told[name] = part.state_dict()
        note = f"while pickling what state_dict() of {type(owner).__name__} or its iterator returned"
        return pickle.dumps(told, 5) if told else None
    except Exception as error:
        add_note(error, note)
        return dump_error(error, _place())


def _place() -> str:
    info = torch_worker_info()
    return "in the loader" if info is None else f"in worker {object.__getattribute__(info, 'id')}"


def tell_part(name: str, part: Any, state: Said) -> None:
    """Have an ``"owner"``, before it is iterated, or its ``"iterator"`` continue from its part of a state."""
    assert isinstance(state, bytes), "a state that was loaded holds answers only"
    states: dict[str, Any] = pickle.loads(state)
    if name in states:
        load_into(part, states[name])


def load_into(part: Any, state: Any) -> None:
    """Have ``part`` continue from what its ``state_dict`` returned.

    Raises:
        ValueError: It takes no state.
    """
    if not is_stateful(part):
        raise ValueError(
            f"the state has a part for a {type(part).__name__}, which has no load_state_dict: was it saved "
            "with another class?"
        )
    part.load_state_dict(state)


def reopen(
    owner: Any,
    state: Said | None,
    open_new: Callable[[], Any],
    *,
    ended: bool,
    finished: bool = False,
    keeps_default: bool = False,
) -> Any:
    """A new iterator of ``owner`` which continues from ``state``.

    Args:
        owner: What is iterated.
        state: What ``where`` returned; None for the beginning.
        open_new: Opens an iterator of ``owner``.
        ended: Whether the iterator was at its end when the state was taken: nothing is left.
        finished: Whether that pass was over: it is read to its end, and the iterator is of the next one.
        keeps_default: Whether the owner's ``load_state_dict`` must not change torch's default generator.
    """
    if state is None:
        return open_new()
    with default_kept(keeps_default):
        tell_part("owner", owner, state)
    if ended:
        return open_new() if finished else iter(())
    iterator = open_new()
    tell_part("iterator", iterator, state)
    if finished:
        run_out(iterator)
        iterator = open_new()
    return iterator


# Neither calls ``iter()``, with which an iterator that is its own iterable may begin anew.


def pass_over(iterator: Any, count: int) -> None:
    """Draw up to ``count`` items, and drop them."""
    deque(map(next, repeat(iterator, count)), 0)


def run_out(iterator: Any) -> None:
    """Draw all that is left, and drop it."""
    deque(map(next, repeat(iterator)), 0)


# The generators that a loader of the torch kind draws from: which they are, and their states as text.
#
# torch's default generator belongs to the whole program, which draws from it between batches; a generator
# that was given to the loader or its sampler is used by the loader alone. So of the default one two states
# count, that from which a pass drew its order and the present one; of the others the first, which determines
# all later ones.

#: The state of each generator, by what it is to the loader.
States: TypeAlias = dict[str, torch.Tensor]

#: torch's default generator, of the CPU.
DEFAULT = "default"


@contextmanager
def default_kept(keeps: bool = True) -> Iterator[None]:
    """Restore torch's default generator afterwards, if ``keeps``."""
    before = torch.default_generator.get_state() if keeps else None
    try:
        yield
    finally:
        if before is not None:
            torch.default_generator.set_state(before)


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
    """What yields single indices, as far as torch's own classes show; else what yields lists of them."""
    batch_sampler = loader.batch_sampler
    if type(batch_sampler) is BatchSampler:
        return batch_sampler.sampler
    return loader.sampler if batch_sampler is None else batch_sampler


def leaves_default_alone(loader: Any) -> bool:
    """Whether the order of a loader's indices certainly does not depend on torch's default generator."""
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
    """The inverse of ``encode_states``.

    Raises:
        ValueError: A state cannot be decoded.
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
