"""What still passes: tolerances by dtype, and how they follow the scale of what is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float8_e4m3fn": (0.125, 1e-5),
    "float8_e5m2": (0.25, 1e-5),
    "float8_e4m3fnuz": (0.125, 1e-5),
    "float8_e5m2fnuz": (0.25, 1e-5),
}
"""(rtol, atol) by dtype, as ``torch.testing`` has them; what is not a float has to be equal."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How the absolute tolerance of a thing follows from the root mean square of its values."""

    floor: float
    """The smallest scale: what smaller values were computed from is taken to be this large."""
    factor: float = 1.0
    """How many times the dtype's ``atol`` passes, at a scale of one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What still passes. An element passes when any of the limits holds for it."""

    ulp: int = 4
    """Steps between neighbouring numbers; -1 where only the same bits pass."""
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=lambda: TOLERANCES)
    """(rtol, atol) by dtype: an error passes up to ``atol + rtol * |baseline|``."""
    noise: float | None = None
    """The largest absolute error between runs of the baseline, where that was measured."""
    noise_factor: float = 3.0
    """How many times the measured noise is still noise."""
    noise_mean: float | None = None
    """How far the errors between runs of the baseline lean to one side, where that was measured."""
    kind: Kind | None = None
    """How ``atol`` follows the scale of the values; None where it is absolute, as a gate's is."""

    def of(self, dtype: str, rms: float) -> tuple[float, float]:
        """(rtol, atol) for values of a dtype and a root mean square."""
        rtol, atol = self.tolerance.get(dtype, (0.0, 0.0))
        return rtol, atol if self.kind is None else atol * self.kind.factor * max(rms, self.kind.floor)

    @property
    def room(self) -> float | None:
        """The absolute error that the measured noise leaves room for; None where none was measured."""
        return None if self.noise is None else self.noise_factor * self.noise
