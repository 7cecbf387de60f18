"""Predictors: a backbone and a head, plain or conditioned on a domain embedding μ.

The adaptive predictor is F(x, μ) = F_mlp(F_ft(x), μ). F_ft is the backbone and a linear layer to
`width`, with no non-linearity behind it; F_mlp is a linear layer to `hidden`, ReLU and a linear
layer to the classes. Where μ enters is the condition:

- concat: F_mlp sees [z, μ] instead of z = F_ft(x), as published;
- film: F_mlp sees z (1 + G μ) + B μ;
- bias: A μ is added to the logits;
- low-rank: W (U h ∘ V μ) / √rank + A μ is added to them, with h the hidden layer: for one domain,
  another last layer, in which image and domain multiply.

G, B, A and W start at zero, so that training starts at the plain predictor.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acclimate.config import ModelConfig
from acclimate.core.errors import ConfigError, require_known
from acclimate.learn.models.backbones import Backbone, Preprocess


class Output(NamedTuple):
    """`logits` [b, classes]; `hidden` [b, h], the penultimate layer, where penalties act."""

    logits: Tensor
    hidden: Tensor


Layers = Callable[[str, Tensor], Tensor]  # applies the linear layer of that name to rows


class Head(nn.Module, ABC):
    """Scores features [b, f], in the domain whose embedding is `mu` where it depends on that.

    `mu` is [b, mu_dim], or [mu_dim] for the whole batch. Methods of adaptation work on heads that
    do not depend on it, as `fold` makes them.
    """

    mu_dim: int = 0  # 0: one classifier for all domains, which ignores `mu`
    last: nn.Linear  # from the hidden layer to the logits, but for what a condition adds

    @abstractmethod
    def forward(self, features: Tensor, mu: Tensor | None = None) -> Output:
        """[b, f] -> logits [b, classes], hidden [b, h]"""

    def fold(self, mu: Tensor) -> "Head":
        """The classifier of one domain, `mu` [mu_dim], whose output is forward(features, mu)'s."""
        return self

    def hidden_by(self, layer: Layers, features: Tensor) -> Tensor:
        """[b, f] -> hidden [b, h] of a folded head in which `layer` applies the linear layers."""
        raise NotImplementedError(f"{type(self).__name__} is no folded head")

    def with_last(self, weight: Tensor, bias: Tensor) -> "Head":
        """This head with another last layer, of weight [C, h] and bias [C]; the rest is shared."""
        changed = copy.copy(self)
        sizes = self.last.in_features, self.last.out_features
        layer = linear_layer(*sizes, weight, bias, self.last.weight)
        changed._modules = {**self._modules, "last": layer}
        return changed

    def scaled(self, factor: float) -> "Head":
        """This head with its logits times `factor`: 1 / temperature calibrates it. One that takes μ
        is folded first."""
        return self.with_last(self.last.weight * factor, self.last.bias * factor)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


@final
class Predictor(Head):
    """A head on the features that a backbone makes of images [b, 3, h, w], or of features [b, f].

    One predictor can be the head of another: on a backbone that is frozen, a run learns layers
    (a backbone that takes features) and a head on those.
    """

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        self.backbone, self.head, self.mu_dim = backbone, head, head.mu_dim
        self.training = head.training  # not train(): a shared backbone keeps its mode

    def forward(self, x: Tensor, mu: Tensor | None = None) -> Output:
        output: Output = self.head(self.backbone(x), mu)
        return output

    def hidden_by(self, layer: Layers, features: Tensor) -> Tensor:
        return self.head.hidden_by(_inside("head", layer), self.backbone(features))

    def fold(self, mu: Tensor) -> "Predictor":
        """The predictor of one domain, on this one's backbone."""
        return Predictor(self.backbone, self.head.fold(mu))

    def with_last(self, weight: Tensor, bias: Tensor) -> "Predictor":
        """This predictor with another last layer, on the same backbone."""
        return Predictor(self.backbone, self.head.with_last(weight, bias))

    def scaled(self, factor: float) -> "Predictor":
        """This predictor with its logits times `factor`, on the same backbone."""
        return Predictor(self.backbone, self.head.scaled(factor))

    @property
    def last(self) -> nn.Linear:  # type: ignore[override]
        return self.head.last


@final
class LinearHead(Head):
    """One layer on the features."""

    def __init__(self, features: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.last = nn.Linear(features, classes)

    def forward(self, features: Tensor, mu: Tensor | None = None) -> Output:
        dropped = F.dropout(features, self.dropout, self.training)
        return Output(self.last(dropped), features)

    def hidden_by(self, layer: Layers, features: Tensor) -> Tensor:
        return features


class Sizes(NamedTuple):
    """Of a head with hidden layers."""

    features: int
    classes: int
    width: int  # numbers that F_ft's linear layer gives
    hidden: int  # numbers that the hidden layer of F_mlp has
    dropout: float = 0.0


class MlpHead(Head):
    """F_ft's linear layer (`project`) and F_mlp (`first`, ReLU, `last`), without μ: the control
    whose capacity is that of the conditioned head."""

    def __init__(self, sizes: Sizes, *, extra: int = 0) -> None:
        super().__init__()
        self.sizes = sizes
        self.project = nn.Linear(sizes.features, sizes.width)
        self.first = nn.Linear(sizes.width + extra, sizes.hidden)
        self.last = nn.Linear(sizes.hidden, sizes.classes)

    def forward(self, features: Tensor, mu: Tensor | None = None) -> Output:
        return self.classify(self.project(features))

    def hidden_by(self, layer: Layers, features: Tensor) -> Tensor:
        return F.relu(layer("first", layer("project", features)))

    def classify(self, z: Tensor) -> Output:
        """[b, width + extra] -> logits [b, classes], hidden [b, hidden] before dropout."""
        hidden = F.relu(self.first(z))
        return Output(self.last(F.dropout(hidden, self.sizes.dropout, self.training)), hidden)


@final
class ConditionedHead(MlpHead):
    """F_mlp(z, μ) on z = F_ft's linear layer: one classifier per domain."""

    def __init__(self, sizes: Sizes, *, mu_dim: int, condition: str = "concat") -> None:
        require_known(condition, _CONDITIONS, f"there is no condition '{condition}'")
        if mu_dim < 1:
            raise ConfigError(f"a domain embedding has 1 dimension or more, not {mu_dim}")
        kind = _CONDITIONS[condition]
        super().__init__(sizes, extra=mu_dim if kind.widens else 0)
        self.mu_dim = mu_dim
        self.condition = kind(mu_dim, sizes)

    def forward(self, features: Tensor, mu: Tensor | None = None) -> Output:
        if mu is None:
            raise ConfigError(
                "this predictor is conditioned on a domain embedding and was called without one; "
                f"pass mu [batch, {self.mu_dim}], or fold one in with fold(mu)"
            )
        z = self.project(features)
        mu = self._rows(mu, z.shape[0]).to(z.dtype)
        logits, hidden = self.classify(self.condition.inputs(z, mu))
        return Output(self.condition.logits(logits, hidden, mu), hidden)

    @torch.no_grad()
    def fold(self, mu: Tensor) -> MlpHead:
        """A plain head for the domain, whose tensors are its own and are computed in float64."""
        if mu.shape != (self.mu_dim,):
            raise ConfigError(f"fold takes one embedding [{self.mu_dim}], not {list(mu.shape)}")
        with torch.device("meta"):  # nothing is initialised, so no random numbers are used up
            folded = MlpHead(self.sizes)
        # Via the CPU, because not every accelerator has float64.
        own = self.state_dict()
        tensors = {
            name: own[name].to("cpu", torch.float64, copy=True) for name in folded.state_dict()
        }
        self.condition.fold(tensors, mu.to("cpu", torch.float64))
        tensors = {name: value.to(self.last.weight).contiguous() for name, value in tensors.items()}
        folded.load_state_dict(tensors, assign=True)
        return folded.train(self.training)

    def _rows(self, mu: Tensor, count: int) -> Tensor:
        """`mu` for each of `count` rows: [mu_dim] or [count, mu_dim] -> [count, mu_dim]."""
        if mu.shape not in ((self.mu_dim,), (count, self.mu_dim)):
            raise ConfigError(
                f"mu is {list(mu.shape)}; this predictor takes [{count}, {self.mu_dim}], one "
                f"embedding per row, or [{self.mu_dim}]"
            )
        return mu.expand(count, self.mu_dim)


@final
class PairHead(Head):
    """The logits of a plain and a conditioned head on the same features, added with `weights`."""

    def __init__(self, plain: Head, conditioned: Head, weights: tuple[float, float]) -> None:
        super().__init__()
        self.plain, self.conditioned, self.weights = plain, conditioned, weights
        self.mu_dim = conditioned.mu_dim

    def forward(self, features: Tensor, mu: Tensor | None = None) -> Output:
        one, two = self.plain(features), self.conditioned(features, mu)
        logits = self.weights[0] * one.logits + self.weights[1] * two.logits
        return Output(logits, torch.cat([one.hidden, two.hidden], 1))

    def fold(self, mu: Tensor) -> "FoldedPairHead":
        """One last layer on the hidden layers of both."""
        return FoldedPairHead(self.plain, self.conditioned.fold(mu), self.weights)

    def scaled(self, factor: float) -> "PairHead":
        one, two = self.weights
        return PairHead(self.plain, self.conditioned, (one * factor, two * factor)).eval()


@final
class FoldedPairHead(Head):
    """One last layer on the hidden layers of two heads: their logits, added with `weights`."""

    @torch.no_grad()
    def __init__(self, one: Head, two: Head, weights: tuple[float, float]) -> None:
        super().__init__()
        self.one, self.two = one, two
        layers = [(share, head.last) for share, head in zip(weights, (one, two), strict=True)]
        weight = torch.cat([share * last.weight.double() for share, last in layers], 1)
        bias = torch.stack([share * last.bias.double() for share, last in layers]).sum(0)
        self.last = linear_layer(weight.shape[1], len(weight), weight, bias, one.last.weight)

    def forward(self, features: Tensor, mu: Tensor | None = None) -> Output:
        hidden = torch.cat([self.one(features).hidden, self.two(features).hidden], 1)
        return Output(self.last(hidden), hidden)

    def hidden_by(self, layer: Layers, features: Tensor) -> Tensor:
        parts = {"one": self.one, "two": self.two}
        hidden = [head.hidden_by(_inside(name, layer), features) for name, head in parts.items()]
        return torch.cat(hidden, 1)


def linear_layer(
    inputs: int, outputs: int, weight: Tensor, bias: Tensor, like: Tensor
) -> nn.Linear:
    """A layer of these tensors, of the type and on the device of `like`."""
    with torch.device("meta"):  # nothing is initialised, so no random numbers are used up
        layer = nn.Linear(inputs, outputs)
    tensors = {"weight": weight.to(like), "bias": bias.to(like)}
    layer.load_state_dict(tensors, assign=True)
    return layer


class _Condition(nn.Module, ABC):
    """One way for μ to enter the head; what is not overridden passes through."""

    widens: ClassVar[bool] = False  # whether F_mlp sees mu_dim more numbers

    def __init__(self, mu_dim: int, sizes: Sizes) -> None:
        super().__init__()
        self.width = sizes.width

    def inputs(self, z: Tensor, mu: Tensor) -> Tensor:
        """z [b, width], mu [b, mu_dim] -> what F_mlp sees."""
        return z

    def logits(self, logits: Tensor, hidden: Tensor, mu: Tensor) -> Tensor:
        """logits [b, classes], hidden [b, hidden], mu [b, mu_dim] -> [b, classes]."""
        return logits

    @abstractmethod
    def fold(self, head: dict[str, Tensor], mu: Tensor) -> None:
        """Change the tensors of the head so that they hold for the constant `mu` [mu_dim]."""


@final
class _Concat(_Condition):
    widens = True

    def inputs(self, z: Tensor, mu: Tensor) -> Tensor:
        return torch.cat([z, mu], dim=1)

    def fold(self, head: dict[str, Tensor], mu: Tensor) -> None:
        # W [z, μ] + c = W_z z + (c + W_μ μ)
        weight = head["first.weight"]
        head["first.weight"] = weight[:, : self.width]
        head["first.bias"] += weight[:, self.width :] @ mu


@final
class _Film(_Condition):
    def __init__(self, mu_dim: int, sizes: Sizes) -> None:
        super().__init__(mu_dim, sizes)
        self.scale = _zero_linear(mu_dim, sizes.width)
        self.shift = _zero_linear(mu_dim, sizes.width)

    def inputs(self, z: Tensor, mu: Tensor) -> Tensor:
        modulated: Tensor = z * (1 + self.scale(mu)) + self.shift(mu)
        return modulated

    def fold(self, head: dict[str, Tensor], mu: Tensor) -> None:
        # s (P f + p) + B μ = (diag(s) P) f + (s p + B μ), with s = 1 + G μ
        scale = 1 + self.scale.weight.to(mu) @ mu
        head["project.weight"] *= scale[:, None]
        head["project.bias"] *= scale
        head["project.bias"] += self.shift.weight.to(mu) @ mu


@final
class _Bias(_Condition):
    def __init__(self, mu_dim: int, sizes: Sizes) -> None:
        super().__init__(mu_dim, sizes)
        self.shift = _zero_linear(mu_dim, sizes.classes)

    def logits(self, logits: Tensor, hidden: Tensor, mu: Tensor) -> Tensor:
        shifted: Tensor = logits + self.shift(mu)
        return shifted

    def fold(self, head: dict[str, Tensor], mu: Tensor) -> None:
        head["last.bias"] += self.shift.weight.to(mu) @ mu


@final
class _LowRank(_Condition):
    rank = 128

    def __init__(self, mu_dim: int, sizes: Sizes) -> None:
        super().__init__(mu_dim, sizes)
        self.of_image = nn.Linear(sizes.hidden, self.rank)
        self.of_domain = nn.Linear(mu_dim, self.rank, bias=False)
        self.out = _zero_linear(self.rank, sizes.classes)
        self.shift = _zero_linear(mu_dim, sizes.classes)

    def logits(self, logits: Tensor, hidden: Tensor, mu: Tensor) -> Tensor:
        both = self.of_image(hidden) * self.of_domain(mu) / self.rank**0.5
        changed: Tensor = logits + self.out(both) + self.shift(mu)
        return changed

    def fold(self, head: dict[str, Tensor], mu: Tensor) -> None:
        # W (s ∘ (U h + u)) = (W diag(s) U) h + W (s ∘ u), with s = V μ / √rank
        scaled = self.out.weight.to(mu) * (self.of_domain.weight.to(mu) @ mu) / self.rank**0.5
        head["last.weight"] += scaled @ self.of_image.weight.to(mu)
        head["last.bias"] += scaled @ self.of_image.bias.to(mu) + self.shift.weight.to(mu) @ mu


def _zero_linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


_CONDITIONS: dict[str, type[_Condition]] = {
    "concat": _Concat,
    "film": _Film,
    "bias": _Bias,
    "low-rank": _LowRank,
}


def build_head(
    features: int, classes: int, settings: ModelConfig, *, mu_dim: int | None = None
) -> Head:
    """The head that a run's settings ask for: conditioned where there is an embedding."""
    sizes = Sizes(features, classes, settings.width, settings.hidden, settings.dropout)
    if mu_dim is not None:
        return ConditionedHead(sizes, mu_dim=mu_dim, condition=settings.condition)
    if settings.head == "mlp":
        return MlpHead(sizes)
    return LinearHead(features, classes, settings.dropout)


def identity_backbone(width: int) -> Backbone:
    """A backbone that hands on feature vectors as they come."""
    return Backbone(nn.Identity(), width, Preprocess((0.0,) * width, (1.0,) * width, 0))


def on_hidden(head: Head) -> Predictor:
    """The last layer alone, as a classifier of the hidden layer before it; it is shared."""
    last = head.last
    backbone = identity_backbone(last.in_features).to(last.weight.device)
    return Predictor(backbone, head_of(last)).eval()


def head_of(last: nn.Linear) -> LinearHead:
    """A head whose one layer is `last`. It is not initialised first: other threads may be drawing
    from torch's generator."""
    with torch.device("meta"):
        head = LinearHead(last.in_features, last.out_features)
    head.last = last
    return head


def takes_features(predictor: Predictor) -> bool:
    """Whether it works on feature vectors instead of images."""
    return predictor.backbone.size == 0


def _inside(part: str, layer: Layers) -> Layers:
    return lambda name, x: layer(f"{part}.{name}", x)


class HeadsByDomain:
    """Heads of many domains, for batches that mix them.

    Of heads of one kind, all parameters of the first are kept, and of each other one those that
    differ: biases where μ or a label prior made it, and at most the last layer after most methods.
    What heads share is computed once for all rows, so that many domains cost about what one does.
    """

    def __init__(self) -> None:
        self._first: dict[Hashable, Head] = {}  # of each kind
        self._heads: dict[Hashable, tuple[Head, dict[str, Tensor]]] = {}  # the last used last

    def __contains__(self, domain: Hashable) -> bool:
        return domain in self._heads

    def put(self, domain: Hashable, head: Head) -> None:
        """Add a domain, or give it another head."""
        parameters = dict(head.named_parameters())
        shapes = [(name, value.shape) for name, value in parameters.items()]
        backbones = [id(part) for part in head.modules() if isinstance(part, Backbone)]
        first = self._first.setdefault((type(head), *shapes, *backbones), head)
        shared = dict(first.named_parameters())
        own = {
            name: value.detach()
            for name, value in parameters.items()
            if value is not shared[name] and not torch.equal(value, shared[name])
        }
        self.drop(domain)
        self._heads[domain] = first, own

    def drop(self, domain: Hashable) -> None:
        """Forget a domain, if it is known."""
        self._heads.pop(domain, None)

    def trim(self, most: int) -> None:
        """Forget the domains that were used least lately, until the others take `most` bytes."""
        sizes = {
            domain: sum(value.nbytes for value in own.values()) + 1024  # of Python's own
            for domain, (_, own) in self._heads.items()
        }
        excess = sum(sizes.values()) - most
        for domain, size in sizes.items():
            if excess <= 0:
                break
            self.drop(domain)
            excess -= size

    @torch.no_grad()
    def logits(self, features: Tensor, domains: Sequence[Hashable]) -> Tensor:
        """Features [b, f] and the domain of each row -> logits [b, C]."""
        kinds: dict[Head, dict[Hashable, list[int]]] = {}
        for row, domain in enumerate(domains):
            kinds.setdefault(self._heads[domain][0], {}).setdefault(domain, []).append(row)
        order, parts = [], []
        for first, rows in kinds.items():
            places = [place for own in rows.values() for place in own]
            heads = [self._heads[domain][1] for domain in rows]
            counts = [len(own) for own in rows.values()]
            parts.append(_classify(first, heads, counts, features[places]))
            order += places
            for domain in rows:
                self._heads[domain] = self._heads.pop(domain)
        logits = torch.cat(parts)
        rows_of_parts = torch.tensor(order).to(logits.device)
        return torch.empty_like(logits).index_copy_(0, rows_of_parts, logits)


def _classify(
    first: Head, heads: Sequence[dict[str, Tensor]], counts: Sequence[int], x: Tensor
) -> Tensor:
    """Logits of features [b, f], of which `counts` rows each, one after the other, are classified
    by `first` with the parameters of one of `heads` in the place of its own."""

    def layer(name: str, x: Tensor) -> Tensor:
        weight, bias = (first.get_parameter(f"{name}.{part}") for part in ("weight", "bias"))
        biases = [head.get(f"{name}.bias", bias) for head in heads]
        if any(f"{name}.weight" in head for head in heads):
            weights = [head.get(f"{name}.weight", weight) for head in heads]
            rows = zip(torch.split(x, list(counts)), weights, biases, strict=True)
            return torch.cat([F.linear(*own) for own in rows])
        if all(own is bias for own in biases):
            return F.linear(x, weight, bias)
        repeats = torch.tensor(counts).to(x.device)
        return F.linear(x, weight) + torch.stack(biases).repeat_interleave(repeats, 0)

    last = next(name for name, part in first.named_modules() if part is first.last)
    return layer(last, first.hidden_by(layer, x))
