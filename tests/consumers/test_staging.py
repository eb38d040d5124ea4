"""From token ids on the host to tensors."""

import numpy as np
import pytest
import torch

from tokenmill.consumers.staging import Staging

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_ids_are_widened_without_a_sign(dtype: str, device: str) -> None:
    """The largest id of each dtype stays what it is; y is one token ahead of x; both are contiguous."""
    top = np.iinfo(dtype).max
    rows = np.array([[0, 1, top, top - 1], [top // 2, top // 2 + 1, 7, top]], dtype)
    staging = Staging(2, 4, rows.dtype, torch.device(device))
    staging.host_rows()[:] = rows
    x, y = staging.to_device(0, 2)
    assert x.tolist() == rows[:, :-1].tolist()
    assert y.tolist() == rows[:, 1:].tolist()
    for tensor in (x, y):
        assert (tensor.dtype, tensor.device.type, tensor.is_contiguous()) == (torch.int64, device, True)


@pytest.mark.parametrize("device", DEVICES)
def test_batches_stay_what_they_are_while_buffers_are_used_again(device: str) -> None:
    """Many more batches than buffers."""
    staging = Staging(3, 5, np.dtype("<u2"), torch.device(device))
    batches = []
    for number in range(20):
        staging.host_rows()[:] = number
        batches.append(staging.to_device(0, 3))
    assert [set(x.flatten().tolist() + y.flatten().tolist()) for x, y in batches] == [{n} for n in range(20)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_buffer_holds_several_batches(device: str) -> None:
    """Each goes by itself; rows from elsewhere go, too."""
    staging = Staging(6, 3, np.dtype("<u2"), torch.device(device))
    rows = staging.host_rows()
    rows[:] = np.arange(18).reshape(6, 3)
    found = [staging.to_device(first, first + 2)[0].tolist() for first in (0, 2, 4)]
    assert found == [[[0, 1], [3, 4]], [[6, 7], [9, 10]], [[12, 13], [15, 16]]]
    x, y = staging.widened(rows[[5, 0]].copy())
    assert (x.tolist(), y.tolist()) == ([[15, 16], [0, 1]], [[16, 17], [1, 2]])
    assert (x.device.type, x.dtype) == (device, torch.int64)
