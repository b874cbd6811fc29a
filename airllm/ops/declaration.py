"""The declaration of an op's arrays, parameters and results, and the checks derived from it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from airllm.formats import Quantized
from airllm.ops import parameters
from airllm.ops.dlpack import overlap, place_of
from airllm.ops.operands import FLOAT32, Operand, Requirement, Shapes


class Declaration:
    """The arrays, parameters and results of an op."""

    def __init__(
        self,
        definition: Callable,
        axes: Mapping[str, str],
        outs: Sequence[str],
        requirements: Sequence[Requirement] = (),
        computes: bool = True,
    ):
        self.name, self.definition, self.requirements = definition.__name__, definition, requirements
        self.computes = computes
        self._axes, self._outs = axes, outs
        given = inspect.signature(definition).parameters
        if unknown := set(axes) - set(given):
            raise TypeError(f"{self.name}: its arrays {sorted(unknown)} must be parameters of it")
        if private := [name for name in given if name.startswith("_")]:
            raise TypeError(f"{self.name}: its parameters {private} must not begin with an underscore")
        self.operands = tuple(
            Operand.parse(name, axes[name], parameter.default is None)
            for name, parameter in given.items()
            if name in axes
        )
        names = ["out"] if len(outs) == 1 else [f"out[{i}]" for i in range(len(outs))]
        self.outs = tuple(Operand.parse(name, text) for name, text in zip(names, outs, strict=True))
        self.parameters = {name: p for name, p in given.items() if name not in axes}
        self.keywords = ("backend",) if self.gives_quantized else ("out", "backend")
        keywords = [inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=None) for k in self.keywords]
        self.signature = inspect.Signature([*given.values(), *keywords])

    def __repr__(self) -> str:
        return f"<op {self.name}{self.signature}>"

    @property
    def text(self) -> str:
        """The declaration in one line, a row of `cpp_ext/ops/table.h`; compiled backends parse it."""
        given = ", ".join(
            self._text_of(p) for n, p in self.signature.parameters.items() if n not in self.keywords
        )
        out = self._outs[0] if len(self._outs) == 1 else tuple(self._outs)
        where = "".join(f" where {requirement.text}" for requirement in self.requirements)
        return f"{self.name}({given}) -> {out!r}{where}"

    def _text_of(self, parameter: inspect.Parameter) -> str:
        axes = self._axes.get(parameter.name)
        kind = parameters.type_text(parameter) if axes is None else repr(axes)
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        return f"{parameter.name}: {kind}{default}"

    @property
    def arrays(self) -> dict[str, tuple[str, ...]]:
        """Array parameters with their axes."""
        return {operand.name: operand.axes for operand in self.operands}

    @property
    def out(self) -> tuple[str, ...]:
        """Axes of the first result."""
        return self.outs[0].axes

    @property
    def defaults(self) -> dict[str, Any]:
        """Parameters other than arrays, with their defaults."""
        return {name: p.default for name, p in self.parameters.items()}

    @property
    def gives_quantized(self) -> bool:
        """Whether the result is a Quantized; such an op has no `out=`."""
        return self.outs[0].kind == "quantized"

    def each(self, results: Any) -> Sequence[Any]:
        """The results as a sequence; TypeError if their number is not the op's."""
        if len(self.outs) == 1:
            return (results,)
        if not isinstance(results, tuple | list) or len(results) != len(self.outs):
            is_several = isinstance(results, tuple | list)
            found = f"{len(results)} arrays" if is_several else f"type {type(results).__name__}"
            raise TypeError(f"{self.name}: out has {found}, expected a tuple of {len(self.outs)} arrays")
        return results

    @staticmethod
    def one_or_all(results: Sequence[Any]) -> Any:
        return results[0] if len(results) == 1 else tuple(results)

    # Checks

    def check(self, arrays: Sequence[Any], out: Any = None) -> tuple[int, ...]:
        """The first result's shape; TypeError or ValueError that names the argument a kernel cannot take.

        `arrays` has one entry per array parameter, None for an omitted one; trailing ones may be missing. An
        array needs only `shape` and `dtype`, so a backend can check its own array type.
        """
        outs = None if out is None else self.each(out)
        return self.check_arrays(self._pad(arrays), outs, of_kernel=True).of(self.outs[0])

    def out_shapes(self, arrays: Sequence[Any]) -> list[tuple[int, ...]]:
        """Shapes of all results."""
        shapes = self.shapes(self._pad(arrays))
        return [shapes.of(out) for out in self.outs]

    def out_shape(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Shape of the first result; ValueError that names the array that breaks the declaration."""
        return self.out_shapes(arrays)[0]

    def check_parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters other than arrays, converted to their types; TypeError or ValueError for a wrong one."""
        return {
            name: parameters.check_value(self.name, parameter, given[name])
            for name, parameter in self.parameters.items()
            if name in given
        }

    def _pad(self, arrays: Sequence[Any]) -> list[Any]:
        return [*arrays, *[None] * (len(self.operands) - len(arrays))]

    def shapes(self, arrays: Sequence[Any], in_full: bool = False) -> Shapes:
        shapes = Shapes(self.name, self.requirements, in_full)
        for operand, value in zip(self.operands, arrays, strict=True):
            if value is not None:
                shapes.add(operand, value)
        return shapes

    def check_arrays(
        self, arrays: Sequence[Any], outs: Sequence[Any] | None, of_kernel: bool = False
    ) -> Shapes:
        """The checks of arrays as a call may have them, or as a kernel takes them: without float64, the op's
        own in dtypes that go together, no axis left out.
        """
        for operand, value in zip(self.operands, arrays, strict=True):
            if value is None and operand.optional:
                continue
            operand.check_type(self.name, value, float64=not of_kernel)
            if of_kernel and operand.kind == "own":
                self._check_agrees(operand, value.dtype, arrays)
        shapes = self.shapes(arrays, in_full=of_kernel)
        for operand, value in zip(self.operands, arrays, strict=True):
            operand.check_range(self.name, value, shapes.sizes)
        for target, out in zip(outs or (), self.outs, strict=False):
            self._check_out(out, target, arrays, shapes.of(out))
        if outs and len(outs) == 2 and all(isinstance(o, np.ndarray) for o in outs) and overlap(*outs):
            raise ValueError(f"{self.name}: out[1] overlaps out[0], expected memory of its own")
        return shapes

    def _check_agrees(self, operand: Operand, dtype: np.dtype, arrays: Sequence[Any]) -> None:
        """The op's own float arrays share one dtype; a weight (no leading axes) may also be float32."""
        first = next(a.dtype for o, a in zip(self.operands, arrays, strict=True) if o.kind == "own")
        allowed = {first} if operand.leads else {first, FLOAT32}
        if dtype not in allowed:
            expected = " or ".join(str(a) for a in sorted(allowed, key=str))
            raise TypeError(f"{self.name}: {operand.name} has dtype {dtype}, expected {expected}")

    def _check_out(self, out: Operand, target: Any, arrays: Sequence[Any], shape: tuple[int, ...]) -> None:
        if not hasattr(target, "dtype") or not hasattr(target, "shape"):
            raise TypeError(
                f"{self.name}: {out.name} has type {type(target).__name__}, expected a NumPy array"
            )
        if tuple(target.shape) != shape:
            raise ValueError(f"{self.name}: {out.name} has shape {tuple(target.shape)}, expected {shape}")
        dtype = self.result_dtype(arrays)
        if target.dtype != dtype:
            raise TypeError(f"{self.name}: {out.name} has dtype {target.dtype}, expected {dtype}")
        if not isinstance(target, np.ndarray):
            return
        if not target.flags.writeable:
            raise ValueError(f"{self.name}: {out.name} is read-only, expected a writeable array")
        for operand, value in zip(self.operands, arrays, strict=True):
            self._check_apart(out, target, operand, value.data if isinstance(value, Quantized) else value)

    def _check_apart(self, out: Operand, target: np.ndarray, operand: Operand, value: Any) -> None:
        in_place = operand.kind == "own" and operand.axes == out.axes
        if not isinstance(value, np.ndarray) or (in_place and place_of(value) == place_of(target)):
            return
        if overlap(target, value):
            instead = f" or exactly {operand.name}" if in_place else ""
            where = f"{out.name} overlaps {operand.name}, expected memory of its own{instead}"
            raise ValueError(f"{self.name}: {where}")

    def floats(self, arrays: Sequence[Any]) -> list[tuple[Operand, np.ndarray]]:
        """Float operands with their arrays: no masks, indices or Quantized."""
        pairs = zip(self.operands, arrays, strict=True)
        return [(o, a) for o, a in pairs if o.is_float and a is not None and not isinstance(a, Quantized)]

    def result_dtype(self, arrays: Sequence[Any]) -> np.dtype:
        """The dtype of the op's first own array, else of a stored one, else float32."""
        floats = sorted(self.floats(self._pad(arrays)), key=lambda pair: pair[0].kind != "own")
        return floats[0][1].dtype if floats else FLOAT32

    # For tests and benchmarks

    def sample(
        self, rng: np.random.Generator, dtype: Any = np.float32, batch: tuple = (), **sizes: int
    ) -> list[Any]:
        """Random arrays for the required operands; `sizes` are those of the named axes."""
        return [o.random(rng, dtype, batch, sizes) for o in self.operands if not o.optional]

    def sample_optional(
        self, rng: np.random.Generator, dtype: Any = np.float32, batch: tuple = (), **sizes: int
    ) -> dict[str, Any]:
        """Random arrays for the optional operands, by name."""
        return {o.name: o.random(rng, dtype, batch, sizes) for o in self.operands if o.optional}

    @staticmethod
    def nbytes(arrays: Sequence[Any], *outs: np.ndarray) -> int:
        """Bytes an op must move: each array read once, each result written once."""
        stored = [a.data if isinstance(a, Quantized) else a for a in arrays if a is not None]
        return sum(a.nbytes for a in (*stored, *outs))
