"""κ itself, and feature maps Ψ with ⟨Ψ(a), Ψ(b)⟩ = κ(a, b): exact, or by Nyström."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

CHUNK = 4096  # rows at a time


@dataclass(frozen=True)
class Widths:
    """A Gaussian of width s is exp(−‖a − b‖²/(2s²))."""

    mean: float  # of k′_X, whose features make μ
    embedding: float  # of 𝔎, on μ
    input: float  # of k_X


@dataclass(frozen=True)
class Combination:
    """f_κ of (k_P, k_X), and the same κ written as a sum of Gaussians of "P", "X" or both."""

    f: Callable[[np.ndarray, np.ndarray], np.ndarray]
    gaussians: tuple[str, ...]


# Sums and products of kernels are kernels (Schur), so each row is one. On 0 ≤ k_P, k_X ≤ 1 the
# slopes in (k_P, k_X) are at most (1, 1), (1, 1) and (1, 2): each is Lipschitz.
COMBINATIONS: Mapping[str, Combination] = MappingProxyType(
    {
        # Every domain its own function of x, alike for like domains; 0 far from all of them.
        "product": Combination(lambda p, x: p * x, ("PX",)),
        # f(P, x) = g(P) + h(x): a domain moves the class prior, it cannot change what x means.
        "sum": Combination(lambda p, x: p + x, ("P", "X")),
        # One function for all domains plus the product's: far from all of them, the shared one.
        "shared": Combination(lambda p, x: x + p * x, ("X", "PX")),
    }
)


def gaussian(a: np.ndarray, b: np.ndarray, width: float) -> np.ndarray:
    """exp(−‖a − b‖²/(2 width²)).  # [n, d], [m, d] -> [n, m]"""
    from sklearn.metrics.pairwise import rbf_kernel

    return np.asarray(rbf_kernel(a / width, b / width, gamma=0.5))


def kappa(
    one: tuple[np.ndarray, np.ndarray],
    two: tuple[np.ndarray, np.ndarray],
    widths: Widths,
    combine: str = "product",
) -> np.ndarray:
    """κ between pairs (μ, x).  # ([n, d], [n, f]), ([m, d], [m, f]) -> [n, m]"""
    k_p = gaussian(one[0], two[0], widths.embedding)
    return COMBINATIONS[combine].f(k_p, gaussian(one[1], two[1], widths.input))


@dataclass(frozen=True)
class Exact:
    """Ψ on the span of the training rows: K = UΛUᵀ, Ψ(z) = Λ^(−½) Uᵀ κ(training rows, z)."""

    means: np.ndarray
    rows: np.ndarray
    widths: Widths
    combine: str
    root: np.ndarray  # UΛ^(−½): [n, rank]

    @classmethod
    def of(cls, means: np.ndarray, rows: np.ndarray, widths: Widths, combine: str) -> "Exact":
        values, vectors = np.linalg.eigh(kappa((means, rows), (means, rows), widths, combine))
        positive = values > values[-1] * len(rows) * np.finfo(float).eps
        return cls(means, rows, widths, combine, vectors[:, positive] / np.sqrt(values[positive]))

    def transform(self, means: np.ndarray, rows: np.ndarray) -> np.ndarray:
        training = (self.means, self.rows)
        features: np.ndarray = kappa((means, rows), training, self.widths, self.combine) @ self.root
        return features


@dataclass(frozen=True)
class NystroemMap:
    """Ψ ≈ a Nyström map for each Gaussian in κ, side by side."""

    widths: Widths
    maps: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, means: np.ndarray, rows: np.ndarray, widths: Widths, combine: str) -> "NystroemMap":
        from sklearn.kernel_approximation import Nystroem

        maps = []
        for of in COMBINATIONS[combine].gaussians:
            # Many rows share a domain's μ; a repeated landmark adds nothing.
            landmarks = np.unique(_scaled(of, means, rows, widths), axis=0)
            nystroem = Nystroem(gamma=0.5, n_components=len(landmarks), random_state=0)
            maps.append((of, nystroem.fit(landmarks)))
        return cls(widths, tuple(maps))

    def transform(self, means: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.hstack(
            [m.transform(_scaled(of, means, rows, self.widths)) for of, m in self.maps]
        )


def mapped(
    psi: Exact | NystroemMap, means: np.ndarray, owner: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Ψ of rows [n, f] of the domains means[owner], chunk by chunk: μ per row is wide."""
    places = np.split(np.arange(len(rows)), range(CHUNK, len(rows), CHUNK))
    return np.concatenate([psi.transform(means[owner[place]], rows[place]) for place in places])


def _scaled(of: str, means: np.ndarray, rows: np.ndarray, widths: Widths) -> np.ndarray:
    """Where the Gaussian of `of` has width 1."""
    scaled = {"P": means / widths.embedding, "X": rows / widths.input}
    return np.hstack([scaled[part] for part in of])
