"""The classifier in the space of κ: fit on domains, adapt to another, predict."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from acclimate.adapt.estimation import NO_LABELS, DomainClassifier, Probabilities
from acclimate.core.errors import ConfigError, NotFinite, unknown
from acclimate.core.randomness import derive, stream
from acclimate.data.columns import require_finite
from acclimate.learn.consistency import mean_radius
from acclimate.paper.kernel import maps
from acclimate.paper.kernel.maps import COMBINATIONS, Exact, NystroemMap, Widths, mapped
from acclimate.paper.theorems import images_needed

EXACT_ROWS = 5000  # a kernel matrix of 200 MB, and its eigenvectors
WIDTH_ROWS = 1000  # the median over half a million distances is steady
FEW_ROWS = 20
ALONE = "all"  # what the one domain is called of rows that come without


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


@dataclass(frozen=True)
class Fitted:
    """What a fit in the space of κ gives."""

    classes: tuple[str, ...]
    domains: tuple[str, ...]
    means: np.ndarray  # [N, d]
    phi: Any  # φ′
    widths: Widths
    map: Exact | NystroemMap  # Ψ
    regression: Any

    def features_of(self, rows: Any) -> np.ndarray:
        """Checked float64 [n, f]."""
        rows, width = np.asarray(rows), self.phi.n_features_in_
        if rows.ndim != 2 or rows.shape[1] != width:
            raise ConfigError(f"this model takes features [n, {width}], not shape {rows.shape}")
        return _numbers(rows)


class KernelClassifier(DomainClassifier):
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
    comes: bring columns of different units to one scale first.

    An estimator of scikit-learn. Without `domains` all rows are of one: f is then a function of x.
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
        self.combine, self.approximate, self.C, self.seed = combine, approximate, C, seed
        self.embedding_width, self.input_width = embedding_width, input_width
        self.mean_width, self.mean_components = mean_width, mean_components
        self.components = components

    def fit(self, X: Any, y: Any = None, domains: Any = None) -> "KernelClassifier":
        """X: features [n, f]; y and domains: [n]."""
        from sklearn.linear_model import LogisticRegression

        self._check_parameters()
        if y is None:
            raise ConfigError(f"{NO_LABELS}features [n, f] with their labels and domains")
        if domains is not None or isinstance(X, np.ndarray):
            _check_arrays(X, y, domains)
        rows, labels = self._check_labels(X, y)
        rows = rows.astype(np.float64)
        names = np.asarray([ALONE] * len(rows) if domains is None else domains)
        if not self.approximate and len(rows) > EXACT_ROWS:
            raise ConfigError(
                f"the exact form takes at most {EXACT_ROWS} rows, not {len(rows)}; "
                "use approximate=True"
            )
        classes, codes = _coded(labels, "y", "two classes")
        wanted = None if domains is None else "two domains"
        domain_names, owner = _coded(names, "domains", wanted)
        means, phi, widths = self._embedded(rows, owner)
        psi = self._map(means, rows, owner, widths)
        weights = 1 / (len(means) * np.bincount(owner)[owner])
        regression = LogisticRegression(C=self.C, fit_intercept=False, tol=1e-6, max_iter=10_000)
        regression.fit(mapped(psi, means, owner, rows), codes, sample_weight=weights)
        self._fitted = Fitted(classes, domain_names, means, phi, widths, psi, regression)
        self._know_labels(labels, classes)
        return self

    def _check_parameters(self) -> None:
        if self.combine not in COMBINATIONS:
            raise unknown(f"there is no combination '{self.combine}'", self.combine, COMBINATIONS)
        for name in ("mean_width", "embedding_width", "input_width"):
            width = getattr(self, name)
            if width != "median" and not _positive(width):
                raise ConfigError(f"{name} is {width!r}; give 'median' or a finite number above 0")
        for name in ("mean_components", "components"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"{name} is {count!r}; give a whole number above 0")
        if not _positive(self.C):
            raise ConfigError(f"C is {self.C!r}; give a finite number above 0")

    def _rows(self, X: Any) -> Any:
        return self._features(X)

    def _unadapted(self) -> Probabilities:
        """f at the training domains' centre."""
        return self._in_order(AdaptedKernel(self._known, self._known.means.mean(0)))

    def _adapted_to(self, rows: Any) -> Probabilities:
        return self._in_order(self.adapt(rows))

    def adapt(self, rows: Any) -> "AdaptedKernel":
        """The classifier for the domain that these unlabelled rows come from: features [n, f]."""
        fitted = self._known
        rows = fitted.features_of(rows)
        if not len(rows):
            raise ConfigError("there is no row to adapt on; give at least one")
        mean, variance, bound = _moments(fitted.phi, rows)
        trust = _judge(fitted, mean, variance, bound, len(rows))
        return AdaptedKernel(fitted, mean, trust, self._labels)

    @property
    def widths(self) -> Widths:
        """The widths in use: those given, and the medians found."""
        return self._known.widths

    @property
    def _known(self) -> Fitted:
        self._require_fitted()
        fitted: Fitted = self._fitted
        return fitted

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
        wanted = getattr(self, f"{name}_width")
        if not isinstance(wanted, str):
            return float(wanted)
        distances = _distances(points)
        apart = distances[distances > 0]  # repeated rows would pull the median to 0
        if of == "domains" and len(points) == 1:
            return 1.0  # of no consequence: there is one μ
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

    fitted: Fitted
    mean: np.ndarray
    trust: KernelTrust | None = None  # None: of no domain in particular
    labels: np.ndarray | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        return self.fitted.classes

    def predict_proba(self, rows: Any) -> np.ndarray:
        """Class probabilities: [n, C]."""
        rows = self.fitted.features_of(rows)
        if not len(rows):
            return np.zeros((0, len(self.classes)))
        owner = np.zeros(len(rows), dtype=int)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            features = mapped(self.fitted.map, self.mean[None], owner, rows)
            _require_finite(features, "a prediction")
            probabilities = np.asarray(self.fitted.regression.predict_proba(features))
        _require_finite(probabilities, "a prediction")
        return probabilities

    def predict(self, rows: Any) -> list[Any]:
        names = self.classes if self.labels is None else self.labels.tolist()
        return [names[index] for index in self.predict_proba(rows).argmax(1)]


def _judge(fitted: Fitted, mean: np.ndarray, variance: float, bound: float, n: int) -> KernelTrust:
    unit = fitted.widths.embedding
    distances = np.linalg.norm(fitted.means - mean, axis=1) / unit
    between = _distances(fitted.means) / unit
    np.fill_diagonal(between, np.inf)
    from acclimate.adapt.trust import Reach  # brings torch, which fitting does without

    reach = Reach.of(between.min(axis=1))
    nearest = int(distances.argmin())
    radius = mean_radius(n, variance, bound)
    warnings = []
    if n < FEW_ROWS:
        warnings.append(f"only {n} rows: with {FEW_ROWS} or more μ is steadier")
    if radius is None:
        enough = images_needed(float("inf"), variance, bound)
        warnings.append(f"the 95 % radius of μ is not guaranteed below {enough} rows")
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
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
        mean = sum(phi.transform(chunk).sum(axis=0) for chunk in chunks) / len(rows)
        squared = [np.square(phi.transform(chunk) - mean).sum(axis=1) for chunk in chunks]
    gaps = np.concatenate(squared)
    _require_finite(gaps, "the domain embedding of a row")
    return mean, float(gaps.mean()), float(gaps.max()) ** 0.5


def _require_finite(values: np.ndarray, what: str) -> None:
    if not np.isfinite(values).all():
        raise NotFinite(
            f"{what} is not finite: a row or a weight is too large for the model's numbers; bring "
            "the columns to one scale, or fit again"
        )


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


def _numbers(rows: np.ndarray) -> np.ndarray:
    if rows.dtype.kind not in "fiub":
        raise ConfigError(f"the features are {rows.dtype}; give numbers")
    rows = rows.astype(np.float64)
    require_finite(rows)
    return rows


def _check_arrays(X: Any, y: Any, domains: Any) -> None:
    """What can be said more plainly than scikit-learn says it; the rest is left to that."""
    rows, labels = np.asarray(X), np.asarray(y)
    names = labels if domains is None else np.asarray(domains)
    if rows.dtype.kind not in "fiubUS" or labels.ndim != 1:
        return
    fits = rows.ndim == 2 and labels.shape == names.shape == rows.shape[:1]
    if not fits:
        shapes = f"X {list(rows.shape)}, y {list(labels.shape)}"
        if domains is not None:
            shapes = f"{shapes}, domains {list(names.shape)}"
        raise ConfigError(f"the arrays are {shapes}; give features [n, f] and one entry per row")
    _numbers(rows)
    if any(value is None or value != value for value in labels.tolist()):
        raise ConfigError("y has rows without a value; drop them")


def _coded(values: np.ndarray, name: str, wanted: str | None) -> tuple[tuple[str, ...], np.ndarray]:
    """(names in order, whole numbers in that of the numbers, and each row's place among them)."""
    if any(value is None or value != value for value in values.tolist()):
        raise ConfigError(f"{name} has rows without a value; drop them")
    found, codes = np.unique(
        values if values.dtype.kind in "iu" else values.astype(str), return_inverse=True
    )
    if len(found) < 2 and wanted is not None:
        raise ConfigError(f"{name} holds '{found[0]}' only; give at least {wanted}")
    return tuple(str(value) for value in found), codes


def _positive(value: Any) -> bool:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return bool(number and 0 < value < float("inf"))
