"""The kernel form of the method: marginal transfer learning on feature arrays.

A predictor is a function of a domain and a row, f(P, x), in the space of the kernel

    κ((P, x), (P′, x′)) = f_κ(k_P(P, P′), k_X(x, x′)),    k_P(P, P′) = 𝔎(μ(P), μ(P′)),

where μ(P) is the mean over P of the feature map φ′ of another kernel, k′_X. Here k_X, k′_X and
𝔎 are Gaussian, with a width each, and so bounded by 1, as the paper's appendix asks of them. 𝔎 is
1-Lipschitz in μ/width (Hölder, α = 1): a μ that is off by r moves f(P, x) by at most ‖f‖ r/width.

φ′ is a finite map of random Fourier features. Their inner product is itself a kernel, bounded by
2, and the Gaussian in expectation: what is proven of kernels holds for it as it stands.
"""

from acclimate.paper.kernel.classifier import AdaptedKernel, KernelClassifier, KernelTrust
from acclimate.paper.kernel.maps import COMBINATIONS, Widths, gaussian, kappa

__all__ = [
    "COMBINATIONS",
    "AdaptedKernel",
    "KernelClassifier",
    "KernelTrust",
    "Widths",
    "gaussian",
    "kappa",
]
