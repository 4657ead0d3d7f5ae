"""`StateBuffers`: the recurrent states of a rank in device memory, and the content tags that conformance reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvspec.impl.buffers import GUARD, check_tags
from kvspec.impl.errors import ContentError, InvalidRangeError
from kvspec.impl.kernels import Backend, backend_for
from kvspec.impl.tags import high_half, joined, low_half
from kvspec.model.conformance import Tags


class StateBuffers:
    """Recurrent states ``[num_slots, heads, d_k, d_v]`` and convolution states ``[num_slots, channels, width]``
    (float32) of each layer; one allocation for each of both.

    A slot is one state: both parts, in all layers. Slot 0 is padding: no function but `guard_padding` changes it.

    A *tag* is a whole number below 2**48 that stands for a state. Its low 24 bits are stored in the recurrent part, its
    high 24 bits in the convolution part, in every cell; a read checks that all cells agree, so that a state that is
    torn, or half of another, is found.

    Args:
        num_slots: slots, slot 0 included.
        layers, heads, d_k, d_v, channels, width: shape of a state; at least 1 each.
        device: where the memory is; the kernels follow it.
    Raises:
        InvalidRangeError: a size is below 1.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        layers: int = 1,
        heads: int = 1,
        d_k: int = 2,
        d_v: int = 2,
        channels: int = 2,
        width: int = 2,
        device: torch.device | str = "cpu",
    ) -> None:
        recurrent, convolution = (layers, num_slots, heads, d_k, d_v), (layers, num_slots, channels, width)
        if min(*recurrent, *convolution) < 1:
            what = f"shapes {recurrent} and {convolution}"
            raise InvalidRangeError("StateBuffers", what, "sizes of at least 1")
        self.recurrent_ = torch.zeros(recurrent, dtype=torch.float32, device=device)
        self.convolution_ = torch.zeros(convolution, dtype=torch.float32, device=device)
        self.device_ = self.recurrent_.device
        self.kernels_: Backend = backend_for(self.device_)
        self._parts = [part.view(layers, num_slots, -1) for part in (self.recurrent_, self.convolution_)]

    def recurrent(self, layer: int) -> Tensor:
        """Recurrent states of a layer, ``[num_slots, heads, d_k, d_v]``."""
        return self.recurrent_[layer]

    def convolution(self, layer: int) -> Tensor:
        """Convolution states of a layer, ``[num_slots, channels, width]``."""
        return self.convolution_[layer]

    # -- slots -------------------------------------------------------------------------------------------------------
    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole states, (source, target) each (checkpoint, restore). No target is a source, or slot 0."""
        if not pairs:
            return
        sources, targets = (self._slots(slots) for slots in zip(*pairs, strict=True))
        for part in self._parts:
            self.kernels_.copy_blocks(part, sources, targets, 1)

    def zero(self, slots: Sequence[int]) -> None:
        """The state of no tokens (fresh live slots)."""
        self._fill(slots, 0.0)

    def poison(self, slots: Sequence[int]) -> None:
        """Fill states with NaN, so that one that must not be read cannot pass for content."""
        self._fill(slots, torch.nan)

    def guard_padding(self) -> None:
        """Fill slot 0 with a value that no tag encodes to."""
        for part in self._parts:
            part[:, 0] = GUARD

    def padding_is_intact(self) -> bool:
        """Whether slot 0 still holds what `guard_padding` wrote."""
        return all(bool((part[:, 0] == GUARD).all()) for part in self._parts)

    def _fill(self, slots: Sequence[int], value: float) -> None:
        if slots:
            where = self._slots(slots)
            for part in self._parts:
                self.kernels_.fill_slots(part, where, value)

    def _slots(self, slots: Sequence[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self.device_)

    # -- tags --------------------------------------------------------------------------------------------------------
    def write_tags(self, slots: Sequence[int], tags: Tags) -> None:
        """Store tags ``[S]`` as the states of slots ``[S]``.

        Raises:
            InvalidRangeError: a tag is negative or 2**48 or more.
        """
        if not len(tags):
            return
        check_tags(tags, "StateBuffers.write_tags")
        where = self._slots(slots)
        for part, half in zip(self._parts, (low_half(tags), high_half(tags)), strict=True):
            row = torch.from_numpy(half.astype(np.float32)).to(self.device_)
            layers, _, size = part.shape
            self.kernels_.write_slots(part, where, row[None, :, None].expand(layers, len(tags), size), 1)

    def read_tags(self, slots: Sequence[int]) -> Tags:
        """Tags ``[S]`` of the states of slots ``[S]``.

        Raises:
            ContentError: a state is poisoned, or its cells disagree.
        """
        if not slots:
            return np.empty(0, dtype=np.int64)
        where = self._slots(slots)
        low, high = (self._half(part, where, slots) for part in self._parts)
        return joined(low, high)

    def _half(self, part: Tensor, where: Tensor, slots: Sequence[int]) -> Tags:
        cells = part.index_select(1, where).cpu().numpy()
        bad = np.flatnonzero((cells != cells[:1, :, :1]).any(axis=(0, 2)))  # NaN differs from itself
        if len(bad):
            index = int(bad[0])
            raise ContentError(f"state slot {slots[index]} holds {cells[:, index].tolist()}: poisoned or torn")
        found: Tags = cells[0, :, 0].astype(np.int64)
        return found
