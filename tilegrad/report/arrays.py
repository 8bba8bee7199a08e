"""Result files with arrays, for what reports."""

from __future__ import annotations

from tilegrad.files.arrays import array_name, npz_bytes, tensor_name

__all__ = ["array_name", "npz_bytes", "tensor_name"]
