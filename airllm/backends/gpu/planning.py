"""The plans of a `Place` whose kernels are those of `cpp_ext/gpu_kernels/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airllm.backends.gpu import expert_launches, mixture_launches, recurrent_launches, tensor_launches
from airllm.backends.gpu.kernel_text import stored_formats
from airllm.backends.gpu.launches import (
    FEWEST_KEYS,
    KERNELS,
    Call,
    Plan,
    attention_parts,
    merge_parts,
    plan_of,
    splits_of,
)

_GROUP, _MOST_GROUPS = 256, 2**16
_LONGEST_SUM = 1024  # of queries that attention sums: common/attention/attention.h


class SharedKernels:
    """What a `Place` says of its kernels. `form`: "gpu" or "cpu", the kernels for what computes there;
    `units`: how many compute at once. `even_keys`: between multiples of so many keys, the numbers of a
    token's launches grow evenly.
    """

    form: str
    units: int
    even_keys = FEWEST_KEYS

    def plan(self, op: str, arrays: Mapping[str, Any], parameters: Mapping[str, Any], outs: Any) -> Plan:
        """The launches of a call with non-empty results `outs`, by name."""
        form, units = self.form, self.units
        out = next(iter(outs.values()))
        grid = (4 * units, 1) if form == "cpu" else (_MOST_GROUPS, _GROUP)
        if op == "assign":
            return tensor_launches.assign(arrays, out, grid)
        if op == "assign_q8_0":
            return tensor_launches.assign_q8_0(arrays, out, grid)
        if op == "combine":
            return tensor_launches.combine(arrays, out, parameters, grid)
        if op == "rope_append":
            return tensor_launches.rope_append(arrays, outs, parameters, grid)
        if op == "residual_norms":
            return tensor_launches.residual_norms(arrays, outs, parameters, grid)
        if op.endswith("_experts"):
            return expert_launches.plan(op, arrays, outs, parameters, form, units)
        if op in mixture_launches.LAUNCHES:
            return mixture_launches.plan(op, arrays, outs, parameters, form, units)
        if op in recurrent_launches.LAUNCHES:
            return recurrent_launches.plan(op, arrays, outs, parameters, form)
        if op == "gated_linear":
            return expert_launches.gated_linear(arrays, out, parameters["activation"], form, units)
        if op == "attention_parts":
            return attention_parts(self._attention(arrays, parameters))
        if op == "merge_parts":
            return merge_parts(arrays["partial"])
        return plan_of(Call(op, arrays, parameters, out.shape, form, units))

    def attention_splits(self, arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> int:
        """Into how many parts attention divides the keys, whose results are merged."""
        return splits_of(self._attention(arrays, parameters))

    def _attention(self, arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> Call:
        shape = (*arrays["q"].shape[-3:-1], arrays["v"].shape[-1])
        return Call("attention", arrays, parameters, shape, self.form, self.units)

    def has(self, op: str) -> bool:
        """Whether there is a kernel of this op."""
        return op in KERNELS

    def fuses(self, name: str, arrays: Mapping[str, Any]) -> bool:
        """Whether there is a kernel of "gated_linear", "rope_append" or the like for these arrays."""
        if self.form == "gpu" and name == "latent_append":
            return arrays["keep_norm"].size + 2 * arrays["cos"].shape[-1] <= _LONGEST_SUM
        return True

    def formats(self) -> Sequence[str]:
        """The block formats that its kernels read."""
        return list(stored_formats())
