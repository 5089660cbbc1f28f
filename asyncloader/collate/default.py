"""``default_collate``: torch's rules for making a batch, applied in one table, to rows and to columns.

Laws:

* A batch equals that of ``torch.utils.data.default_collate``: structure, types, dtypes, values, errors.
* Rules that a user has registered in torch's ``default_collate_fn_map`` apply, also if they replace torch's.
* Values are stacked on this thread, into memory that a transport has lent if there is any. torch stacks
  tensors in a pool of OpenMP threads, which compete with those of the training, and in a worker into shared
  memory of its own transport: 26 ms and 13 ms for 64 images of 150 KB, against 1 ms and 3 ms for one copy.
* Arrays in read-only memory, such as those over the bytes of a shard, are copied without torch's warning.
* If torch is not imported and stand-ins for tensors are allowed, plain values need no torch; see
  ``blocks.memory``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from ..blocks import Block, Column, Columns, Ragged
from ..blocks.memory import LEAST_BYTES, copied, has_tensors, may_stand_in, stacked, standing_in, tensor_of
from ..observe.stopwatch import COLLATE, DECODE
from .fault import naming_entries, note_field

_Rule = Callable[..., Any]

_NUMBERS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}

# The types that ``torch.utils.data.default_convert`` returns as they are, but only after many type checks.
_LEFT = frozenset({*_NUMBERS, str, bytes, type(None)})


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack a list of samples into a batch, by the rules of ``torch.utils.data.default_collate``.

    Args:
        batch: ``B`` samples of the same structure. Keys and types are those of the first one.

    Returns:
        The structure of a sample, with a batch in place of each value. Tensors and NumPy arrays of shape
        ``S`` become a tensor ``(B, *S)`` of their dtype. Numbers become a tensor: ``int`` ``(B,) int64``,
        ``float`` ``(B,) float64``, ``bool`` ``(B,) bool``. Strings and bytes, such as ``__key__`` and
        ``__url__``, become a list. Mappings, namedtuples and lists keep their type; a tuple becomes a list.

    Raises:
        Exception: What torch raises, with the same type and message: ``RuntimeError`` for unequal shapes or
            lengths, ``TypeError`` for a type without a rule, ``KeyError`` for a field that a later sample
            lacks, ``IndexError`` for an empty batch. A note names the field and the entries.
    """
    try:
        made = collate_plain(batch)
        return _by_torch(batch) if made is NotImplemented else made
    except Exception as error:
        note_field(error, batch, _by_torch, _leaf_types())
        raise


def default_convert(sample: Any) -> Any:
    """Turn the arrays of a sample into tensors, by the rules of ``torch.utils.data.default_convert``.

    Args:
        sample: One sample, without a batch dimension (``batch_size=None``).

    Returns:
        The sample with NumPy arrays and scalars as tensors of the same shape and dtype. Tensors share the
        memory of arrays where torch can do that; read-only arrays are copied. A tuple becomes a list. Python
        numbers, strings, bytes, arrays of strings or objects and all other values stay as they are.

    Raises:
        Exception: What torch raises, with the same type and message: ``TypeError`` for a dtype that torch
            does not have. A note names the field.
    """
    import torch.utils.data

    convert: Callable[[Any], Any] = torch.utils.data.default_convert  # untyped there
    try:
        return _convert(sample, convert)
    except Exception as error:
        note_field(error, [sample], lambda values: convert(values[0]), _leaf_types())
        raise


def _convert(value: Any, convert: Callable[[Any], Any]) -> Any:
    """The value that ``convert`` returns, with read-only arrays copied."""
    kind = type(value)
    if kind in _LEFT:
        return value
    if kind is np.ndarray:
        return convert(_as_writable(value) if has_tensors(value.dtype) else value)
    if kind is dict:
        return {name: _convert(part, convert) for name, part in value.items()}
    if kind is list or kind is tuple:
        return [_convert(part, convert) for part in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(_convert(part, convert) for part in value))
    return convert(value)


# --- the rules ---


def collate_plain(values: Sequence[Any]) -> Any:
    """The batch of the values of one field, or of whole samples.

    Returns:
        The batch; NotImplemented if only torch can make it and stand-ins are allowed. Then the whole batch is
        made again with torch.
    """
    kinds = set(map(type, values))
    if len(kinds) == 1:
        made = _of_kind(kinds.pop(), values)
        if made is not NotImplemented:
            return made
    return NotImplemented if may_stand_in() else _by_torch(values)


def _of_kind(kind: type, values: Sequence[Any]) -> Any:
    """The table of rules: the batch of values of one type.

    NotImplemented for what torch does: other types, values that do not fit together, and types for which a
    user has registered a rule.
    """
    if not _has_usual_rule(kind):
        return NotImplemented
    if kind is dict:
        try:  # as in torch, fields that the first sample lacks are ignored
            fields = {name: collate_plain([value[name] for value in values]) for name in values[0]}
        except KeyError:
            return NotImplemented
        return NotImplemented if any(field is NotImplemented for field in fields.values()) else fields
    if kind is list or kind is tuple:
        if len(set(map(len, values))) != 1:
            return NotImplemented
        parts = [collate_plain(part) for part in zip(*values, strict=True)]
        return NotImplemented if any(part is NotImplemented for part in parts) else parts
    if kind is str or kind is bytes:
        return values
    if kind in _NUMBERS:
        try:
            return tensor_of(np.array(values, _NUMBERS[kind]))
        except OverflowError:
            return NotImplemented
    if kind is np.ndarray:
        # torch's rule makes tensors of the arrays, and stacks them by the rule for tensors.
        fit = _are_alike(values) and has_tensors(values[0].dtype) and _has_usual_rule_for_tensors()
        return tensor_of(stacked(values)) if fit else NotImplemented
    if issubclass(kind, np.bool_ | np.number) and kind is not np.uint64:  # which torch refuses
        scalars = np.array(values)
        return tensor_of(scalars) if has_tensors(scalars.dtype) else NotImplemented
    if kind.__name__ == "Tensor" and kind is getattr(sys.modules.get("torch"), "Tensor", None):
        return _stack_tensors(values)
    return NotImplemented


def _stack_tensors(tensors: Sequence[Any]) -> Any:
    import torch

    first = tensors[0]
    try:
        # torch stacks so few bytes on this thread, in C order.
        if first.nbytes * len(tensors) < LEAST_BYTES and first.is_contiguous():
            if first.layout is not torch.strided or first.is_nested:
                return NotImplemented
            batch = torch.stack(list(tensors))
            return NotImplemented if batch.requires_grad or batch.dtype != first.dtype else batch
        if first.is_complex():
            tensors = [tensor.resolve_conj() for tensor in tensors]
        elif first.dtype is torch.bfloat16 and _are_alike(tensors):  # which NumPy lacks
            tensors = [tensor.view(torch.int16) for tensor in tensors]
        arrays = [tensor.numpy() for tensor in tensors]
    except (RuntimeError, TypeError):  # gradients, other devices, layouts and dtypes
        return NotImplemented
    if not _are_alike(arrays):
        return NotImplemented
    return torch.from_numpy(stacked(arrays)).view(first.dtype)


def _are_alike(arrays: Sequence[Any]) -> bool:
    """Whether arrays, or tensors, have one shape and one dtype."""
    first = arrays[0]
    return all(array.shape == first.shape and array.dtype == first.dtype for array in arrays)


# --- torch's own, and what users have registered ---


@cache
def _private() -> ModuleType:
    """``torch_private``, looked up once: importing it in each call took a fifth of a small batch."""
    # torch first: its import hook may need our module, which depends on torch.
    import torch  # noqa: F401

    from .. import torch_private

    return torch_private


def _by_torch(values: Sequence[Any]) -> Any:
    """torch's collation, with our rules in place of its own."""
    private = _private()
    rules: dict[Any, _Rule] = private.default_collate_fn_map
    return private.collate(values, collate_fn_map=rules | _own_rules(_stack_by_torch))


def use_own_rules() -> None:
    """Replace torch's rules with ours in this process; rules of users stay.

    For workers of torch's kinds of dataset: there torch's rule for tensors allocates new pages of torch's own
    transport for each batch, and its rules for numbers take four times as long as NumPy.
    """
    private = _private()
    private.default_collate_fn_map.update(_own_rules(private.collate_tensor_fn))


def _own_rules(stack_rest: _Rule) -> dict[Any, _Rule]:
    """For each rule of torch's, a rule that applies the table first.

    Args:
        stack_rest: Stacks the tensors that the table does not stack.
    """
    private = _private()
    return {
        kind: _table_first(stack_rest if rule is private.collate_tensor_fn else rule)
        for kind, rule in private.default_collate_fn_map.items()
        if getattr(rule, "__module__", None) == private.collate.__module__
    }


@cache
def _table_first(rule: _Rule) -> _Rule:
    def apply(values: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
        dtype = _NUMBERS.get(type(values[0]))
        if dtype is not None:
            # NumPy finds the one type of all sooner than looking at each; it refuses some mixtures.
            with suppress(RuntimeError, TypeError, ValueError):
                array = np.array(values)
                if array.dtype == dtype:
                    return tensor_of(array)
        kinds = set(map(type, values))
        made = _of_kind(kinds.pop(), values) if len(kinds) == 1 else NotImplemented
        if made is not NotImplemented:
            return made
        # torch would warn of read-only memory before it raises or promotes.
        return rule([*map(_as_writable, values)], collate_fn_map=collate_fn_map)

    return apply


def _stack_by_torch(tensors: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """torch's rule outside of its workers. In a worker it uses shared memory, and cannot promote."""
    import torch

    if tensors[0].layout is not torch.strided or tensors[0].is_nested:
        return _private().collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)  # which refuses them
    return torch.stack(list(tensors))


def _has_usual_rule(kind: type) -> bool:
    """Whether values of a type are collated by torch's rule, our replacement of it, or by structure."""
    if "torch" not in sys.modules:
        return True
    private = _private()
    rules: dict[Any, _Rule] = private.default_collate_fn_map
    rule = rules.get(kind)
    if rule is None:  # the first rule for one of its base classes, as torch finds it
        rule = next((rules[each] for each in rules if issubclass(kind, each)), None)
        if rule is None:
            return True
    return getattr(rule, "__module__", None) in (private.collate.__module__, __name__)


def _has_usual_rule_for_tensors() -> bool:
    torch = sys.modules.get("torch")
    return torch is None or _has_usual_rule(torch.Tensor)


def _leaf_types() -> tuple[type, ...]:
    """The types that have a rule, whatever their structure."""
    kinds = _private().default_collate_fn_map
    return tuple(each for kind in kinds for each in (kind if isinstance(kind, tuple) else (kind,)))


def _as_writable(value: Any) -> Any:
    """The value, or a copy of an array that cannot be written to."""
    is_frozen = isinstance(value, np.ndarray) and not value.flags.writeable
    return value.copy() if is_frozen else value


# --- blocks and columns ---


def collate_block(
    fn: Callable[[Any], Any],
    block: Block,
    place_of: Callable[[int], str],
    enter: Callable[[str], object] = str,
) -> Any:
    """The batch that ``fn`` makes of a block: from its columns if both support it, otherwise from rows.

    If anything is wrong with the samples, the rows are collated, so that errors come from one place.

    Args:
        fn: Any ``collate_fn``.
        block: The samples.
        place_of: Returns where a sample came from, by its index.
        enter: Called with the stage that begins, since ``fn`` does not make rows of columns.
    """
    without_torch = "torch" not in sys.modules and does_without_torch(fn)
    with standing_in() if without_torch else nullcontext():
        if isinstance(block, Columns):
            batch = collate_columns(fn, block.fields)
            if batch is not NotImplemented:
                return batch
            enter(DECODE)
        rows = list(block.rows())  # the function may change the list
        enter(COLLATE)
        with naming_entries(rows, place_of):
            return fn(rows)


def does_without_torch(fn: Callable[[Any], Any]) -> bool:
    """Whether a function makes batches of plain values without torch and without a user's function.

    Such a function of ours has a true ``does_without_torch``.
    """
    return fn is default_collate or bool(getattr(fn, "does_without_torch", False))


def takes_columns(fn: Callable[[Any], Any]) -> bool:
    """Whether columns should be made for a function; ``default_collate`` does not benefit from them."""
    return hasattr(fn, "from_columns")


def collate_columns(fn: Callable[[Any], Any], fields: Mapping[str, Column]) -> Any:
    """The batch that ``fn`` makes of these columns, without rows; NotImplemented if that is impossible.

    A function may have a method ``from_columns(fields)``, which returns the same batch as the function does
    from rows, or NotImplemented. ``default_collate`` is built in here, and torch's too.
    """
    torchs = getattr(sys.modules.get("torch.utils.data"), "default_collate", None)
    if fn is default_collate or (fn is torchs and torchs is not None):
        return _stack_columns(fields)
    from_columns = getattr(fn, "from_columns", None)
    return NotImplemented if from_columns is None else from_columns(fields)


def _stack_columns(fields: Mapping[str, Column]) -> Any:
    """The batch that ``default_collate`` makes of the rows; NotImplemented if it may fail or differ."""
    if not len(next(iter(fields.values()))) or not _has_usual_rule(dict):
        return NotImplemented
    try:
        batch = {name: _stack_column(column) for name, column in fields.items()}
    except Exception:
        return NotImplemented  # the rows fail too, and name the sample at fault
    return NotImplemented if any(part is NotImplemented for part in batch.values()) else batch


def _stack_column(column: Column) -> Any:
    if type(column) is Ragged and isinstance(column.values, np.ndarray):
        column = np.asarray(column)  # a ValueError where lengths differ
    if isinstance(column, np.ndarray) and has_tensors(column.dtype):
        if column.ndim > 1:
            is_usual = _has_usual_rule(np.ndarray) and _has_usual_rule_for_tensors()
        else:
            is_usual = column.dtype != np.uint64 and _has_usual_rule(column.dtype.type)
        if is_usual:
            return tensor_of(copied(column))
    return collate_plain(list(column))
