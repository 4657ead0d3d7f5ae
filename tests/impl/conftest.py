"""Where there is no GPU the Triton kernels run in Triton's interpreter, which is chosen before they are imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
