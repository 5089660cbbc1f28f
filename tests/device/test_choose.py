from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import asyncloader as al
from asyncloader.device.stage import check_device, open_stage
from asyncloader.flow.channel import Channel

here_without_a_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def opened(**options: Any) -> tuple[bool, list[str]]:
    """Whether the source itself came back, and the warnings."""
    source: Channel[Any] = Channel(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stage = open_stage(source, **options)
    stage.close()
    return stage is source, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_nothing_asked_for_is_no_stage(device: Any) -> None:
    assert opened(pin_memory=False, device=device) == (True, [])


@here_without_a_gpu
def test_pinning_without_accelerator_warns_as_torch_does() -> None:
    text = (
        "'pin_memory' argument is set as true but no accelerator is found, "
        "then device pinned memory won't be used."
    )
    assert opened(pin_memory=True) == (True, [text])
    loader = torch.utils.data.DataLoader([1], pin_memory=True)
    with pytest.warns(UserWarning) as caught:
        iter(loader)
    assert [str(warning.message) for warning in caught] == [text]


@here_without_a_gpu
def test_the_warning_names_the_line_of_the_loop() -> None:
    loader = al.DataLoader(al.from_iterable([1]), pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator") as caught:
        for _ in loader:
            pass
    assert [warning.filename for warning in caught] == [__file__]


def test_pin_memory_device_warns_as_torch_does() -> None:
    expected = (
        "pin_memory_device is deprecated, the current accelerator will be used as the device,"
        "ignore pin_memory_device='cuda'."
    )
    assert opened(pin_memory=True, pin_memory_device="cuda")[1][0] == expected
    assert opened(pin_memory=False, pin_memory_device="cuda") == (True, [])


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "", "cuda:-2"])
def test_names_torch_does_not_know_are_value_errors(device: str) -> None:
    with pytest.raises(ValueError, match="device option should name a torch device"):
        check_device(device)


@pytest.mark.parametrize("device", ["meta", "mps"])
def test_other_devices_are_value_errors(device: str) -> None:
    with pytest.raises(ValueError, match="should be a CUDA device or 'cpu'"):
        check_device(device)


@pytest.mark.parametrize("device", [0, True, b"cuda"])
def test_other_types_are_type_errors(device: Any) -> None:
    with pytest.raises(TypeError, match="device option should be a string"):
        check_device(device)


@here_without_a_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 0)])
def test_missing_device_is_an_error_before_anything_starts(device: Any) -> None:
    with pytest.raises(RuntimeError, match="needs a CUDA device, but torch finds none"):
        open_stage(Channel(1), pin_memory=False, device=device)


def test_device_is_checked_before_pinning_warns() -> None:
    with pytest.raises(ValueError, match="name a torch device"):
        open_stage(Channel(1), pin_memory=True, pin_memory_device="x", device="gpu")


@pytest.mark.gpu
def test_index_beyond_the_devices_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="should be one of the"):
        check_device(f"cuda:{torch.cuda.device_count()}")
