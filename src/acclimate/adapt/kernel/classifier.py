"""The classifier in the space of κ: fit on domains, adapt to another, predict."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate.adapt.kernel import maps
from acclimate.adapt.kernel.maps import COMBINATIONS, Exact, NystroemMap, Widths, mapped
from acclimate.adapt.reach import Reach
from acclimate.core.errors import ConfigError, RunError, unknown
from acclimate.core.randomness import derive, stream
from acclimate.data.columns import require_finite
from acclimate.learn.theory import images_needed, mean_radius

EXACT_ROWS = 5000  # a kernel matrix of 200 MB, and its eigenvectors
WIDTH_ROWS = 1000  # the median over half a million distances is steady
FEW_ROWS = 20


@dataclass(frozen=True)
class KernelTrust:
    """What is known of an adaptation without a label; lengths in units of the embedding width.

    In this unit a distance r between two domains means k_P = exp(−r²/2).
    """

    n: int
    radius95: float | None  # Theorem 1; σ² and the bound on ‖φ′(x) − μ‖ as seen in the rows
    expected_error: float  # σ/√n
    nearest_domain: str
    nearest_distance: float
    typical_distance: float  # how far a domain like those in training may lie: see `Reach`
    warned_share: float  # of domains like those in training, how many lie farther and are warned of
    warnings: tuple[str, ...]


class KernelClassifier:
    """Learns from labelled domains, in the space of κ, a classifier that adapts to a new one.

    Of all functions in the RKHS of κ, `fit` takes the one that minimises

        1/N Σ_domains 1/n_i Σ_rows log-loss(f(P_i, x_ij), y_ij) + λ‖f‖²,    λ = 1/(2C),

    each domain counting the same however many rows it has. Given a map Ψ with ⟨Ψ(a), Ψ(b)⟩ =
    κ(a, b), every candidate is ⟨w, Ψ(·)⟩ with ‖f‖ = ‖w‖, so this is logistic regression on Ψ with
    row weights 1/(N n_i) and, as in the formula, no intercept. With more than two classes there is
    one f per class, a softmax over them, and the sum of their squared norms.

    `approximate=False` takes Ψ from the kernel matrix of all rows (the representer theorem says
    that the minimiser lies in their span). Otherwise each Gaussian in κ gets a Nyström map on
    `components` landmark rows, drawn evenly from the domains. That is the simplest map for every
    `combine`: a product of Gaussians is one Gaussian on the concatenation [x/width, μ/width], and
    the maps of a sum stand side by side. It is exact once all rows are landmarks, where random
    features would keep an error of the order of 1/√components.

    A width is a number or "median": the median distance between rows (`input_width`, and
    `mean_width` for k′_X), or between training domains (`embedding_width`). X is taken as it
    comes: bring columns of different units to one scale first. There is no save and load: a fit
    repeats by its seed.
    """

    def __init__(
        self,
        *,
        combine: str = "product",
        embedding_width: float | str = "median",
        input_width: float | str = "median",
        mean_width: float | str = "median",
        mean_components: int = 512,
        components: int = 300,
        approximate: bool = True,
        C: float = 1000.0,
        seed: int = 0,
    ) -> None:
        if combine not in COMBINATIONS:
            raise unknown(f"there is no combination '{combine}'", combine, COMBINATIONS)
        widths = {"mean": mean_width, "embedding": embedding_width, "input": input_width}
        for name, width in widths.items():
            if width != "median" and not _positive(width):
                raise ConfigError(
                    f"{name}_width is {width!r}; give 'median' or a finite number above 0"
                )
        for name, count in {"mean_components": mean_components, "components": components}.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"{name} is {count!r}; give a whole number above 0")
        if not _positive(C):
            raise ConfigError(f"C is {C!r}; give a finite number above 0")
        self.combine, self.approximate, self.C, self.seed = combine, approximate, C, seed
        self.mean_components, self.components = mean_components, components
        self._wanted = widths
        self._fitted: _Fitted | None = None

    def fit(self, X: Any, y: Any = None, domains: Any = None) -> "KernelClassifier":
        """X: features [n, f]; y and domains: [n]."""
        from sklearn.linear_model import LogisticRegression

        rows, labels, names = _checked(X, y, domains)
        if not self.approximate and len(rows) > EXACT_ROWS:
            raise ConfigError(
                f"the exact form takes at most {EXACT_ROWS} rows, not {len(rows)}; "
                "use approximate=True"
            )
        classes, codes = _coded(labels, "y", "two classes")
        domain_names, owner = _coded(names, "domains", "two domains")
        means, phi, widths = self._embedded(rows, owner)
        psi = self._map(means, rows, owner, widths)
        weights = 1 / (len(means) * np.bincount(owner)[owner])
        regression = LogisticRegression(C=self.C, fit_intercept=False, tol=1e-6, max_iter=10_000)
        regression.fit(mapped(psi, means, owner, rows), codes, sample_weight=weights)
        self._fitted = _Fitted(classes, domain_names, means, phi, widths, psi, regression)
        return self

    def adapt(self, rows: Any) -> "AdaptedKernel":
        """The classifier for the domain that these unlabelled rows come from: features [n, f]."""
        fitted = self._known
        rows = fitted.features_of(rows)
        if not len(rows):
            raise ConfigError("there is no row to adapt on; give at least one")
        mean, variance, bound = _moments(fitted.phi, rows)
        trust = _judge(fitted, mean, variance, bound, len(rows))
        return AdaptedKernel(fitted, mean, trust)

    @property
    def widths(self) -> Widths:
        """The widths in use: those given, and the medians found."""
        return self._known.widths

    @property
    def _known(self) -> "_Fitted":
        if self._fitted is None:
            raise RunError("this KernelClassifier is not fitted yet; call fit first")
        return self._fitted

    def _embedded(self, rows: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, Any, Widths]:
        """(μ of each training domain [N, d], φ′, the widths)."""
        from sklearn.kernel_approximation import RBFSampler

        sample = rows[_evenly(owner, WIDTH_ROWS, stream(self.seed, "kernel", "width"))]
        mean = self._width("mean", sample, "rows")
        phi = RBFSampler(
            gamma=1 / (2 * mean**2),
            n_components=self.mean_components,
            random_state=derive(self.seed, "kernel", "mean") % 2**32,
        ).fit(rows[:1])
        means = np.stack([_moments(phi, rows[owner == d])[0] for d in range(owner.max() + 1)])
        embedding = self._width("embedding", means, "domains")
        return means, phi, Widths(mean, embedding, self._width("input", sample, "rows"))

    def _width(self, name: str, points: np.ndarray, of: str) -> float:
        wanted = self._wanted[name]
        if not isinstance(wanted, str):
            return float(wanted)
        distances = _distances(points)
        apart = distances[distances > 0]  # repeated rows would pull the median to 0
        if not len(apart):
            raise ConfigError(
                f"all {of} are alike, so {name}_width has no median; give it as a number"
            )
        return float(np.median(apart))

    def _map(
        self, means: np.ndarray, rows: np.ndarray, owner: np.ndarray, widths: Widths
    ) -> "Exact | NystroemMap":
        if not self.approximate:
            return Exact.of(means[owner], rows, widths, self.combine)
        chosen = _evenly(owner, self.components, stream(self.seed, "kernel", "landmarks"))
        return NystroemMap.of(means[owner[chosen]], rows[chosen], widths, self.combine)


@dataclass(frozen=True)
class AdaptedKernel:
    """The classifier of one domain: f(P, ·) with P's embedding `mean` [d]."""

    fitted: "_Fitted"
    mean: np.ndarray
    trust: KernelTrust

    @property
    def classes(self) -> tuple[str, ...]:
        return self.fitted.classes

    def predict_proba(self, rows: Any) -> np.ndarray:
        """Class probabilities: [n, C]."""
        rows = self.fitted.features_of(rows)
        if not len(rows):
            return np.zeros((0, len(self.classes)))
        owner = np.zeros(len(rows), dtype=int)
        features = mapped(self.fitted.map, self.mean[None], owner, rows)
        return np.asarray(self.fitted.regression.predict_proba(features))

    def predict(self, rows: Any) -> list[str]:
        return [self.classes[index] for index in self.predict_proba(rows).argmax(1)]


@dataclass(frozen=True)
class _Fitted:
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    means: np.ndarray  # [N, d]
    phi: Any
    widths: Widths
    map: Exact | NystroemMap
    regression: Any

    def features_of(self, rows: Any) -> np.ndarray:
        """Checked float64 [n, f]."""
        rows, width = np.asarray(rows), self.phi.n_features_in_
        if rows.ndim != 2 or rows.shape[1] != width:
            raise ConfigError(f"this model takes features [n, {width}], not shape {rows.shape}")
        return _numbers(rows)


def _judge(fitted: _Fitted, mean: np.ndarray, variance: float, bound: float, n: int) -> KernelTrust:
    unit = fitted.widths.embedding
    distances = np.linalg.norm(fitted.means - mean, axis=1) / unit
    between = _distances(fitted.means) / unit
    np.fill_diagonal(between, np.inf)
    reach = Reach.of(between.min(axis=1))
    nearest = int(distances.argmin())
    radius = mean_radius(n, variance, bound)
    warnings = []
    if n < FEW_ROWS:
        warnings.append(f"only {n} rows: with {FEW_ROWS} or more μ is steadier")
    if radius is None:
        wanted = images_needed(float("inf"), variance, bound)
        warnings.append(f"the 95 % radius of μ is not guaranteed below {wanted} rows")
    if distances[nearest] > reach.distance:
        warnings.append(reach.warning())
    return KernelTrust(
        n=n,
        radius95=None if radius is None else radius / unit,
        expected_error=(variance / n) ** 0.5 / unit,
        nearest_domain=fitted.domains[nearest],
        nearest_distance=float(distances[nearest]),
        typical_distance=reach.distance,
        warned_share=reach.beyond,
        warnings=tuple(warnings),
    )


def _moments(phi: Any, rows: np.ndarray) -> tuple[np.ndarray, float, float]:
    """(μ = mean of φ′ [d], mean of ‖φ′(x) − μ‖², the largest ‖φ′(x) − μ‖), chunk by chunk."""
    chunks = [rows[start : start + maps.CHUNK] for start in range(0, len(rows), maps.CHUNK)]
    mean = sum(phi.transform(chunk).sum(axis=0) for chunk in chunks) / len(rows)
    squared = [np.square(phi.transform(chunk) - mean).sum(axis=1) for chunk in chunks]
    gaps = np.concatenate(squared)
    return mean, float(gaps.mean()), float(gaps.max()) ** 0.5


def _distances(points: np.ndarray) -> np.ndarray:
    """[n, d] -> [n, n], 0 on the diagonal."""
    from sklearn.metrics import pairwise_distances

    # The plain "euclidean" leaves 1e-8 between equal points.
    squared: np.ndarray = pairwise_distances(points, metric="sqeuclidean")
    return np.asarray(np.sqrt(squared))


def _evenly(owner: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Places of at most `count` rows, from every domain as many as it has or as the others give."""
    shuffled = rng.permutation(len(owner))
    turn = np.empty(len(owner), dtype=int)
    for domain in np.unique(owner):
        mine = shuffled[owner[shuffled] == domain]
        turn[mine] = np.arange(len(mine))
    return shuffled[np.argsort(turn[shuffled], kind="stable")][:count]


def _checked(X: Any, y: Any, domains: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if y is None or domains is None:
        raise ConfigError("fit takes features [n, f] with their labels and domains")
    rows, labels, names = np.asarray(X), np.asarray(y), np.asarray(domains)
    fits = rows.ndim == 2 and labels.shape == names.shape == rows.shape[:1]
    if not fits or not rows.size:
        shapes = f"X {list(rows.shape)}, y {list(labels.shape)}, domains {list(names.shape)}"
        raise ConfigError(f"the arrays are {shapes}; give features [n, f] and one entry per row")
    return _numbers(rows), labels, names


def _numbers(rows: np.ndarray) -> np.ndarray:
    if rows.dtype.kind not in "fiub":
        raise ConfigError(f"the features are {rows.dtype}; give numbers")
    rows = rows.astype(np.float64)
    require_finite(rows)
    return rows


def _coded(values: np.ndarray, name: str, wanted: str) -> tuple[tuple[str, ...], np.ndarray]:
    """(names in order, whole numbers in that of the numbers, and each row's place among them)."""
    if any(value is None or value != value for value in values.tolist()):
        raise ConfigError(f"{name} has rows without a value; drop them")
    found, codes = np.unique(
        values if values.dtype.kind in "iu" else values.astype(str), return_inverse=True
    )
    if len(found) < 2:
        raise ConfigError(f"{name} holds '{found[0]}' only; give at least {wanted}")
    return tuple(str(value) for value in found), codes


def _positive(value: Any) -> bool:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return bool(number and 0 < value < float("inf"))
